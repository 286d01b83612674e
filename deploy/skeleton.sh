#!/bin/sh
# Writes the workspace without its code to a directory: all manifests, and in the place of each crate's sources an empty
# stand-in. Built there, the dependencies are compiled and nothing else.
#
#   sh deploy/skeleton.sh DIRECTORY     (in the root of the repository)
set -eu
mkdir -p "$1"
cp --parents Cargo.toml Cargo.lock .cargo/config.toml crates/*/Cargo.toml bin/Cargo.toml xtask/Cargo.toml tests/Cargo.toml "$1"
cd "$1"
for library in crates/* tests; do
  mkdir -p "$library/src" && echo '//! Stands in.' >"$library/src/lib.rs"
done
for program in bin xtask; do
  mkdir -p "$program/src" && printf '//! Stands in.\nfn main() {}\n' >"$program/src/main.rs"
done
