#!/bin/bash
# Installs the systemd units of the coordinator or of data sites, with the programs they start; running it again
# changes what is not as it should be, and nothing else.
set -eu
# What the services' users have to read can be read by everybody; what they must not has its mode said below.
umask 022

usage() {
  cat <<'END'
install.sh server [OPTIONS]             the coordinator
install.sh client NAME... [OPTIONS]     data sites: fkd-client@NAME

  --source PATH   a checkout or a wheel to install from (default: the checkout this script lies in)
  --prefix DIR    where the programs go, in DIR/venv (default: /opt/fkd)
  --root DIR      install below DIR instead of /, for images and tests; starts and asks nothing of systemd
  --uninstall     remove units and programs; settings, keys and state stay
  --purge         with --uninstall: settings, state and caches go, too; keys in /etc/fkd stay

With FKD_BIN=DIR in the environment the units start the programs that lie in DIR, and none are installed.
The exit status is 0 if all is as asked, 1 if something failed, 2 if something was asked wrongly.
END
}

# On one line, and nothing that a terminal takes for an order.
fail() { echo "install.sh: error: ${2//[^[:print:]]/?}" >&2; exit "$1"; }
say() { echo "install.sh: ${1//[^[:print:]]/?}"; }

# As check_client_name in fkd_common/identifiers.py has it.
is_name() {
  local LC_ALL=C
  [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$ ]]
}

# plain_path PATH: what can stand in a unit, in a script's first line and in a pattern without quoting.
plain_path() {
  local LC_ALL=C
  [[ $1 =~ ^[A-Za-z0-9/._-]*$ ]]
}

here=$(cd "$(dirname "$0")" && pwd)
names=()
role='' root='' prefix=/opt/fkd source='' uninstall='' purge=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --uninstall) uninstall=1 ;;
    --purge) purge=1 ;;
    --source | --prefix | --root)
      [ $# -ge 2 ] && [ -n "$2" ] || fail 2 "$1 needs a value (see --help)"
      case $1 in --source) source=$2 ;; --prefix) prefix=$2 ;; --root) root=${2%/} ;; esac
      shift ;;
    -*) fail 2 "unknown option $1 (see --help)" ;;
    *) if [ -z "$role" ]; then role=$1; else names+=("$1"); fi ;;
  esac
  shift
done

case $role in
  server) [ ${#names[@]} = 0 ] || fail 2 "server takes no names, got: ${names[*]}" ;;
  client) [ ${#names[@]} != 0 ] || fail 2 "client needs the name of at least one data site, as in: install.sh client site-a" ;;
  '') fail 2 "expected server, or client and names (see --help)" ;;
  *) fail 2 "expected server or client, got $role (see --help)" ;;
esac
for name in "${names[@]}"; do
  is_name "$name" ||
    fail 2 "'$name' cannot be a client's name: 1-64 letters, digits, '.', '_' and '-', a letter or digit first"
done
case $prefix in /*) ;; *) fail 2 "--prefix $prefix: expected an absolute path" ;; esac
plain_path "$prefix" || fail 2 "--prefix $prefix: expected letters, digits and /._-"
case $root in '' | /*) ;; *) root=$PWD/$root ;; esac
plain_path "$root" || fail 2 "--root $root: expected letters, digits and /._-"
[ -z "$purge" ] || [ -n "$uninstall" ] || fail 2 "--purge goes with --uninstall"
[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail 2 "installing into /etc takes root: run it with sudo, or try it with --root DIR"

units=$root/etc/systemd/system
settings=$root/etc/fkd
venv=$root$prefix/venv
bin=${FKD_BIN:-$prefix/venv/bin}
case $bin in /*) ;; *) fail 2 "FKD_BIN=$bin: expected an absolute path" ;; esac
plain_path "$bin" || fail 2 "FKD_BIN=$bin: expected letters, digits and /._-"
marker=$venv/.made-by-fkd-install
changed=0

live() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

# put MODE TARGET: standard input becomes the file, unless that is what it holds.
put() {
  fresh=$(mktemp)
  cat > "$fresh"
  if cmp -s "$fresh" "$2"; then
    rm "$fresh"
    return
  fi
  install -D -m "$1" "$fresh" "$2"
  rm "$fresh"
  say "wrote $2"
  changed=1
}

# keep MODE TARGET: like put, for a file that belongs to the operator once it is there.
keep() {
  if [ -e "$2" ] || [ -L "$2" ]; then
    cat > /dev/null
    return
  fi
  put "$1" "$2"
}

remove() {
  for path in "$@"; do
    if [ -e "$path" ] || [ -L "$path" ]; then
      rm -rf "$path"
      say "removed $path"
      changed=1
    fi
  done
}

unit() { sed "s|/opt/fkd/venv/bin|$bin|" "$here/$1"; }

# What the installed programs were made from, to tell whether there is anything to do.
fingerprint() {
  if [ -d "$source" ]; then
    (cd "$source" && find pyproject.toml fkd_* -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
  else
    sha256sum < "$source"
  fi | sha256sum | cut -d ' ' -f 1
}

pip() {
  verb=$1
  shift
  "$venv/bin/python3" -m pip "$verb" --quiet --disable-pip-version-check "$@" || fail 1 "pip could not install $source$extra"
}

# Makes the folder of the programs, or takes up one that it made; nobody else's is used, opened or removed.
make_venv() {
  if [ -L "$venv" ] || { [ -e "$venv" ] && [ ! -f "$marker" ]; }; then
    fail 2 "$venv was not made by install.sh: choose another --prefix, or start what is there with FKD_BIN=$venv/bin"
  fi
  place=$prefix
  while [ "$place" != / ]; do
    if [ -d "$root$place" ] && [ -z "$(find -L "$root$place" -maxdepth 0 -perm -o=x)" ]; then
      fail 2 "$place cannot be entered by everybody, so the services could not start programs below it: choose another --prefix"
    fi
    place=$(dirname "$place")
  done
  say "installing fkd$extra into $venv"
  mkdir -p "$venv"
  touch "$marker"
  [ -x "$venv/bin/python3" ] || python3 -m venv "$venv" || fail 1 "$venv cannot be made"
}

programs() {
  if [ -n "${FKD_BIN:-}" ]; then
    [ -x "$root$bin/fkd-$role" ] || [ -x "$bin/fkd-$role" ] || fail 2 "FKD_BIN=$bin: there is no program fkd-$role"
    return
  fi
  source=${source:-$(cd "$here/../.." && pwd)}
  [ -f "$source/pyproject.toml" ] || [ -f "$source" ] || fail 2 "--source $source: expected a checkout or a wheel"
  extra=''
  [ "$role" = server ] || extra='[client]'
  # Serving after training, on one machine, must not take torch away from the clients.
  if [ -f "$marker" ] && grep -q '\[client\]' "$marker"; then extra='[client]'; fi
  asked="$(fingerprint) fkd$extra"
  if [ -f "$marker" ] && [ "$(cat "$marker")" = "$asked" ]; then return; fi
  python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null ||
    fail 1 "Python 3.11 or newer with its venv module is needed (Debian: apt-get install python3-venv)"
  make_venv
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  wheel=$source
  if [ -d "$source" ]; then
    # From a copy: a build leaves folders behind, and takes up what an earlier one left.
    (cd "$source" && tar -cf - --exclude=__pycache__ pyproject.toml README.md LICENSE fkd_*/) | tar -xf - -C "$scratch"
    pip wheel --no-deps --wheel-dir "$scratch" "$scratch"
    wheel=$(echo "$scratch"/*.whl)
  fi
  # Twice: what it needs, and then itself, even where the version is the one that is there.
  pip install "$wheel$extra"
  pip install --force-reinstall --no-deps "$wheel"
  # In an image the programs will be found without the root.
  [ -z "$root" ] || sed -i "1s|^#!$root|#!|" "$venv"/bin/fkd-*
  echo "$asked" > "$marker"
  changed=1
}

install_server() {
  put 644 "$units/fkd-server.service" < <(unit fkd-server.service)
  for file in fkd-server-tls.path fkd-server-tls.service fkd-server.service.d/torch.conf.example; do put 644 "$units/$file" < "$here/$file"; done
  keep 600 "$settings/server.env" < "$here/server.env"
  keep 644 "$settings/server.yaml" < "$here/server.yaml"
}

install_clients() {
  put 644 "$units/fkd-client@.service" < <(unit fkd-client@.service)
  put 644 "$units/fkd-client@.service.d/gpu.conf.example" < "$here/fkd-client@.service.d/gpu.conf.example"
  put 644 "$root/usr/lib/sysusers.d/fkd.conf" < "$here/fkd.sysusers"
  for name in "${names[@]}"; do
    if [ -e "$settings/client-$name.env.uninstalled" ]; then
      mv "$settings/client-$name.env.uninstalled" "$settings/client-$name.env"
      say "took up $settings/client-$name.env again"
      changed=1
    fi
    keep 600 "$settings/client-$name.env" < <(sed "s/NAME/$name/g" "$here/client.env")
  done
  if [ -z "$root" ] && ! getent group fkd-data > /dev/null; then
    systemd-sysusers /usr/lib/sysusers.d/fkd.conf || fail 1 "the group fkd-data cannot be made"
    say "made the group fkd-data"
    changed=1
  fi
}

stop_unit() {
  if live && [ -e "$units/$2" ]; then systemctl --quiet disable --now "$1" || true; fi
}

uninstall_server() {
  stop_unit fkd-server-tls.path fkd-server-tls.path
  stop_unit fkd-server.service fkd-server.service
  remove "$units/fkd-server.service" "$units/fkd-server-tls.path" "$units/fkd-server-tls.service" \
    "$units/fkd-server.service.d/torch.conf.example"
  rmdir "$units/fkd-server.service.d" 2> /dev/null || true
  if [ -n "$purge" ]; then
    remove "$settings/server.env" "$settings/server.yaml"
    remove_state fkd-server
  fi
}

uninstall_clients() {
  for name in "${names[@]}"; do
    stop_unit "fkd-client@$name.service" fkd-client@.service
    if [ -n "$purge" ]; then
      remove "$settings/client-$name.env" "$settings/client-$name.env.uninstalled"
      remove_state "fkd-client/$name"
    elif [ -e "$settings/client-$name.env" ]; then
      # Another name: the files that are left tell whether this was the last site.
      mv "$settings/client-$name.env" "$settings/client-$name.env.uninstalled"
      say "kept $settings/client-$name.env.uninstalled"
      changed=1
    fi
  done
  for left in "$settings"/client-*.env; do
    [ ! -e "$left" ] || return 0
  done
  remove "$units/fkd-client@.service" "$units/fkd-client@.service.d/gpu.conf.example" "$root/usr/lib/sysusers.d/fkd.conf"
  rmdir "$units/fkd-client@.service.d" 2> /dev/null || true
}

remove_state() {
  for kind in lib cache; do
    remove "$root/var/$kind/private/$1" "$root/var/$kind/$1"
  done
  rmdir "$root/var/lib/private/fkd-client" "$root/var/lib/fkd-client" "$root/var/cache/private/fkd-client" \
    "$root/var/cache/fkd-client" 2> /dev/null || true
}

if [ -n "$uninstall" ]; then
  if [ "$role" = server ]; then uninstall_server; else uninstall_clients; fi
  if [ ! -e "$units/fkd-server.service" ] && [ ! -e "$units/fkd-client@.service" ] && [ -f "$marker" ]; then
    remove "$venv"
    rmdir "$root$prefix" 2> /dev/null || true
  fi
  rmdir "$settings" 2> /dev/null || true
else
  programs
  if [ "$role" = server ]; then install_server; else install_clients; fi
fi
if live && [ "$changed" = 1 ]; then systemctl daemon-reload; fi
if [ "$changed" = 0 ]; then
  say "nothing to do"
elif [ -z "$uninstall" ] && [ "$role" = server ]; then
  say "next: edit $settings/server.env and $settings/server.yaml, then systemctl enable --now fkd-server fkd-server-tls.path"
elif [ -z "$uninstall" ]; then
  for name in "${names[@]}"; do
    say "next: edit $settings/client-$name.env, then systemctl enable --now fkd-client@$name"
  done
fi
