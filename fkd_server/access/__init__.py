"""Who may connect to a coordinator and how it is proved: certificates, tokens, revocation; knows no runs."""
