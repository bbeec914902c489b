#!/bin/sh
# Install Chromium for the tests where none of the programs that they take is there.
set -eu
for name in chromium chromium-browser google-chrome chrome; do
    command -v $name > /dev/null && exit
done
fail() {
    echo "make integrations shows a page in Chromium, $1: install it (on Debian: apt-get install chromium)" >&2
    exit 1
}
command -v apt-get > /dev/null || fail "which is not installed, and here is no apt-get"
[ "$(id -u)" = 0 ] || fail "which is not installed, and only root may install packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing Chromium"
export DEBIAN_FRONTEND=noninteractive
{
    apt-get update -o DPkg::Lock::Timeout=300 &&
    apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 chromium
} > "$log" 2>&1 < /dev/null || {
    cat "$log" >&2
    fail "which apt-get could not install"
}
