#!/bin/sh
# $verb as $name. Before all files are there, make or name the next one.
set -eu
cd "$$(dirname "$$0")"
sqlfl provision study.toml --site $name
${otherwise}exec sqlfl $command "$$@"
