#!/bin/sh
# Strips a binary and keeps its symbols in a file beside it, BINARY.debug, which the binary then names.
#
#   tools/strip.sh target/release/penstock
#
# Backtraces, gdb and addr2line find the file beside the binary or below /usr/lib/debug. Skips a binary that it has
# stripped before. Needs objcopy, nm and readelf (binutils, part of every C toolchain).
#
# The same sources give the same bytes in any folder. Two things depend on the folder of the build otherwise: ThinLTO
# adds a hash of a module's path to names of local symbols, and the linker's build ID is a hash of these names, too.
set -eu

binary=$1
if readelf -SW "$binary" | grep -q ' \.gnu_debuglink '; then
    exit 0
fi
work=$(mktemp -d "$binary.strip.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Numbers the modules in the order of their first symbols, in place of the hashes of their paths.
nm --no-sort "$binary" | awk '{
    name = $NF
    if (match(name, /\.llvm\.[0-9]+$/)) {
        module = substr(name, RSTART)
        if (!(module in number)) number[module] = ++count
        print name, substr(name, 1, RSTART - 1) ".llvm." number[module]
    }
}' | sort -u > "$work/names"
objcopy --only-keep-debug --redefine-syms="$work/names" "$binary" "$work/debug"
objcopy --strip-all "$binary" "$work/stripped"

# The build ID: a hash of the stripped binary with an empty one. A note has 16 bytes before it.
if objcopy --dump-section .note.gnu.build-id="$work/note" "$work/stripped" 2> /dev/null; then
    id_bytes=$(($(stat -c %s "$work/note") - 16))
    head -c 16 "$work/note" > "$work/head"
    { cat "$work/head"; head -c "$id_bytes" /dev/zero; } > "$work/empty"
    objcopy --update-section .note.gnu.build-id="$work/empty" "$work/stripped"
    id=$(sha256sum "$work/stripped" | cut -c "1-$((2 * id_bytes))" | sed 's/../& /g')
    cat "$work/head" > "$work/note"
    for byte in $id; do
        printf "\\$(printf %03o "0x$byte")" >> "$work/note"
    done
    for file in "$work/stripped" "$work/debug"; do
        objcopy --update-section .note.gnu.build-id="$work/note" "$file"
    done
fi
chmod 0644 "$work/debug"
mv "$work/debug" "$binary.debug"
# Into a new file: cargo keeps the binary under a second name, whose symbols stay.
objcopy --add-gnu-debuglink="$binary.debug" "$work/stripped"
mv "$work/stripped" "$binary"
echo "$binary: $(stat -c %s "$binary") bytes; its symbols: $binary.debug"
