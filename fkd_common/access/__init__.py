"""What both sides know of certificates, tokens and handshakes; nothing is signed or served here."""
