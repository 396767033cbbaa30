# Debians with nothing in them, in which scripts try what users do; they read this file with ".".
#
# Needs root and mmdebstrap.  Settings, as environment variables:
#
#   MIRROR=URL          where Debian's packages are  (default: http://deb.debian.org/debian)
#   APT_DIR=DIRECTORY   apt settings for the Debians, copied over their /etc/apt (default: none)
#
# shellcheck shell=sh

script=$(basename "$0")
checkout=$(cd "$(dirname "$0")/.." && pwd)
mirror=${MIRROR:-http://deb.debian.org/debian}

say() { echo "$script: $*"; }
die() { say "FAILED: $*"; exit 1; }

[ "$(id -u)" -eq 0 ] || die "only root can do this"

need() {
    for each in "$@"; do
        command -v "$each" >/dev/null || die "this needs $each"
    done
}
need mmdebstrap git

work=$(mktemp -d "${TMPDIR:-/tmp}/$script.XXXXXX")
chmod 755 "$work"
children=''                             # numbers of processes to end

# The only way out: no process, no mount, no file stays behind.
clean_up() {
    code=$?
    trap - EXIT INT TERM
    for each in $children; do
        kill -TERM "$each" 2>/dev/null || :
        wait "$each" 2>/dev/null || :
    done
    for each in "$work"/*/proc; do
        if mountpoint -q "$each"; then umount "$each" || umount -l "$each"; fi
    done
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Does a command, and shows what it said if it failed.
quietly() {
    "$@" >"$work/log" 2>&1 || { cat "$work/log"; die "$*"; }
}

# make_machine DIRECTORY RELEASE [PACKAGE]...
make_machine() {
    machine=$1
    made_of=$2
    shift 2
    say "making Debian $made_of with ${*:-nothing}"
    quietly mmdebstrap --variant=minbase ${1:+--include="$*"} "$made_of" "$machine" "$mirror"
    if [ -n "${APT_DIR:-}" ]; then cp -R "$APT_DIR/." "$machine/etc/apt/"; fi
    mount -t proc proc "$machine/proc"
    [ -c "$machine/dev/null" ] || die "it has no /dev/null"
}

# Becomes a command in the machine $1, with nothing of our environment, no terminal, no input.
become_inside() {
    machine=$1
    shift
    exec chroot "$machine" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

# Does such a command.
inside() { (become_inside "$@"); }

# Copies what is in the repository, as it is here, to the directory $1.
copy_project() {
    mkdir -p "$1"
    (cd "$checkout" && git ls-files -z | tar --null -T - -cf -) | tar -C "$1" --no-same-owner -xf -
}

# Boots systemd in the machine $machine, on the network of this one, and waits until it has.
init=                                   # that systemd, as process of this machine
boot() {
    systemd-nspawn --quiet --register=no --keep-unit --resolv-conf=copy-host \
        --directory="$machine" --boot </dev/null >"$work/console" 2>&1 &
    nspawn=$!
    children=$nspawn
    until init=$(pgrep -P "$nspawn") && on_machine test -S /run/systemd/private; do
        kill -0 "$nspawn" 2>/dev/null || { cat "$work/console"; die "it does not boot"; }
        sleep 1
    done
    on_machine systemctl --wait is-system-running || :
}

# Does a command on the machine that runs, as root in the clone, and without a terminal.
on_machine() {
    setsid --wait nsenter --target "$init" --mount --uts --ipc --pid -- \
        /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER=cat \
        sh -c 'cd /usr/src/project && exec "$@"' sh "$@" </dev/null
}
