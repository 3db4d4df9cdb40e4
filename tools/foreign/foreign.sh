#!/bin/bash
# Runs commands as if on a machine that this one is not: big-endian (s390x), 32-bit (i686) or ARM (aarch64),
# emulated. `cargo xtask foreign` calls it. This processor runs i686 itself if its kernel lets it. For
# `wasm32` it only compiles: `cargo xtask web` calls it where Rust has no library for WebAssembly.
#
#   foreign.sh install TARGET          installs what the target needs, once
#   foreign.sh run TARGET COMMAND...   runs a command in this checkout; Cargo builds for the target
#   foreign.sh outside TARGET PROGRAM  prints the words that run a built program outside the root
#   foreign.sh built TARGET FILE       prints where a file that Cargo built is outside the root
#
# TARGET is s390x, i686, aarch64 or wasm32. The checkout is mounted read-only; what is built lands in
# $GCODEC_FOREIGN/root/build/target/.
#
# It needs root, an amd64 Debian with its mirror, 4 GB of disk for all three targets (and 1 GB for what each
# builds) and the crates of Cargo.lock. In the environment: GCODEC_FOREIGN, where all of it lies (default
# ~/.cache/gcodec/foreign; remove that folder to be rid of it), GCODEC_FOREIGN_MIRROR (default: the mirror
# among apt's sources). Nothing else here changes but that `debootstrap` is installed if it is missing.
#
# Why so: a compiler reads no standard library but those of its own version, and rustup's for these targets
# are not always to be had. So Rust comes whole from Debian's suite `testing`, which has one version of it for
# all machines and is linked against a newer libc than this machine's: it lives in a root of its own, with the
# C compilers (for zstd), the C libraries and QEMU of the same suite.
set -euo pipefail

place=${GCODEC_FOREIGN:-$HOME/.cache/gcodec/foreign}
root=$place/root
checkout=$(cd "$(dirname "$0")/../.." && pwd)

die() { echo "foreign.sh: $*" >&2; exit 1; }
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }

# Debian's name of the machine, Rust's, the prefix of its C compiler, its emulator.
case ${2:-} in
    s390x) deb=s390x triple=s390x-unknown-linux-gnu cross=s390x-linux-gnu qemu=qemu-s390x ;;
    i686) deb=i386 triple=i686-unknown-linux-gnu cross=i686-linux-gnu qemu=qemu-i386 ;;
    aarch64) deb=arm64 triple=aarch64-unknown-linux-gnu cross=aarch64-linux-gnu qemu=qemu-aarch64 ;;
    wasm32) deb=wasm32 triple=wasm32-unknown-unknown cross= qemu= ;;
    *) usage ;;
esac

# The mirror that this machine uses already. apt is asked, rather than its files read: they have two syntaxes.
mirror() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F'|' '$1 == "Debian" && $2 == "Debian" && !found { print $3; found = 1 }'
}

make_root() {
    local from=${GCODEC_FOREIGN_MIRROR:-$(mirror)}
    if [ -z "$from" ] || ! command -v debootstrap >/dev/null; then
        apt-get update -q >&2 || true   # another repository's failure is none of ours
        from=${from:-$(mirror)}
    fi
    [ -n "$from" ] || die "no Debian mirror among apt's sources: set GCODEC_FOREIGN_MIRROR"
    command -v debootstrap >/dev/null || apt-get install -y -q --no-install-recommends debootstrap >&2
    echo "== a root of Debian testing" >&2
    rm -rf --one-file-system "$root"
    # The script is named because a stable debootstrap does not know the names of suites that came after it.
    debootstrap --variant=minbase --arch=amd64 --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        testing "$root" "$from" /usr/share/debootstrap/scripts/sid >"$place/debootstrap.log" 2>&1 ||
        die "debootstrap failed: $(tail -n 3 "$place/debootstrap.log")"
    # A mirror may lag by weeks, and the lists of `testing` say that they expire in one: they are checked
    # against Debian's signature all the same.
    cat >"$root/etc/apt/apt.conf.d/90foreign" <<'APT'
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
APT::Install-Recommends "false";
Dpkg::Use-Pty "0";
APT
    printf 'path-exclude=/usr/share/%s/*\n' doc info locale man >"$root/etc/dpkg/dpkg.cfg.d/90foreign"
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"   # no service is to start in there
    chmod +x "$root/usr/sbin/policy-rc.d"
    mkdir -p "$root/src" "$root/build" "$root/root/.cargo/registry"
    touch "$root/.made"
}

# Runs a command in the root. The mounts are in a namespace of their own and go away with the command,
# whatever ends it: no removal of the root can reach through one that was left behind.
inside() {
    unshare --mount --propagation private -- bash -euc '
        root=$1 checkout=$2 cargo=$3
        shift 3
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --bind "$checkout" "$root/src"
        mount -o remount,bind,ro "$root/src"
        mkdir -p "$cargo/registry"
        mount --bind "$cargo/registry" "$root/root/.cargo/registry"
        cp /etc/resolv.conf "$root/etc/resolv.conf"
        # Where crates come from, if that was changed here: Cargo names the folders of its cache after it.
        for config in "$cargo/config.toml" "$cargo/config"; do
            [ ! -e "$config" ] || cp "$config" "$root/root/.cargo/"
        done
        exec chroot "$root" /usr/bin/env -i HOME=/root TERM="${TERM:-dumb}" LC_ALL=C.UTF-8 \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
    ' inside "$root" "$checkout" "${CARGO_HOME:-$HOME/.cargo}" "$@"
}

install() {
    [ "$(id -u)" = 0 ] || die "debootstrap, chroot and mounts need root"
    [ "$(dpkg --print-architecture)" = amd64 ] || die "written for an amd64 Debian"
    mkdir -p "$place"
    exec 9>"$place/lock"
    flock 9   # two at once would share dpkg's database; Cargo locks its own folder
    [ -e "$root/.made" ] || make_root
    if [ ! -e "$root/.has-$deb" ]; then
        echo "== Rust and what else $triple needs" >&2
        # libstd-rust-dev is "Multi-Arch: same": those of all targets lie beside each other.
        local needs=(qemu-user "libstd-rust-dev:$deb" "gcc-$cross" "libc6-dev-$deb-cross")
        [ "$deb" != wasm32 ] || needs=(libstd-rust-dev-wasm32 lld)
        inside DEBIAN_FRONTEND=noninteractive bash -euc '
            [ "$1" = wasm32 ] || dpkg --add-architecture "$1"
            apt-get update -q
            apt-get install -y -q rustc cargo gcc libc6-dev "${@:2}"
            apt-get clean
        ' install "$deb" "${needs[@]}" >"$place/install-$deb.log" 2>&1 ||
            die "apt could not install it: $(grep -m 3 '^E:' "$place/install-$deb.log")"
        touch "$root/.has-$deb"
    fi
    exec 9>&-
}

# The words that run a program of the target, whose libraries are in the root, at $1.
runner() {
    local lib=$1/usr/$cross/lib
    if [ "$deb" = i386 ] && "$root/usr/$cross/lib/ld-linux.so.2" --version >/dev/null 2>&1; then
        echo "$lib/ld-linux.so.2 --library-path $lib"   # a kernel may be built without 32-bit programs
    else
        echo "$1/usr/bin/$qemu -L $1/usr/$cross"   # Debian's emulators are static, so they run outside, too
    fi
}

# The target is said here and not in the command, so that any command of Cargo is meant for it.
run() {
    # Fetched by this machine's own Cargo: its proxies and certificates are its own business.
    (cd "$checkout" && cargo fetch --locked --quiet --target "$triple") || die "the crates could not be fetched"
    local upper under=${triple//-/_}
    upper=$(tr a-z- A-Z_ <<<"$triple")
    # Debian's Rust names a linker that only Rust's own packages have.
    local tools=("CARGO_TARGET_${upper}_LINKER=wasm-ld")
    [ "$deb" = wasm32 ] || tools=(
        "CARGO_TARGET_${upper}_LINKER=$cross-gcc" "CARGO_TARGET_${upper}_RUNNER=$(runner "")"
        "CC_$under=$cross-gcc" "AR_$under=$cross-ar")
    inside \
        CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never CARGO_BUILD_RUSTC_WRAPPER= \
        CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=2 \
        CARGO_BUILD_TARGET="$triple" CARGO_TARGET_DIR=/build/target RUST_BACKTRACE=1 "${tools[@]}" \
        bash -c 'cd /src && exec "$@"' run "$@"
}

task=$1
shift 2
case $task in
    install) install ;;
    run) run "$@" ;;
    outside) echo "$(runner "$root")" "$root/build/target/$triple/debug/$1" ;;
    built) echo "$root/build/target/$triple/$1" ;;
    *) usage ;;
esac
