#!/bin/sh
# Strips a binary and keeps its symbols in a file beside it, BINARY.debug, which the binary then names.
#
#   tools/strip.sh target/release/penstock
#
# Backtraces, gdb and addr2line find the file beside the binary or below /usr/lib/debug. Skips a binary that it has
# stripped before. Needs objcopy and readelf (binutils, part of every C toolchain).
set -eu

binary=$1
if readelf -SW "$binary" | grep -q ' \.gnu_debuglink '; then
    exit 0
fi
objcopy --only-keep-debug "$binary" "$binary.debug"
chmod 0644 "$binary.debug"
# Into a new file: cargo keeps the binary under a second name, whose symbols stay.
objcopy --strip-all --add-gnu-debuglink="$binary.debug" "$binary" "$binary.stripped"
mv "$binary.stripped" "$binary"
echo "$binary: $(stat -c %s "$binary") bytes; its symbols: $binary.debug"
