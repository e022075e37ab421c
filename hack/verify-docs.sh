#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when the pages are out of date: a make target, a test, or a path of this repository
# in backquotes that does not exist; a link to a file or heading that does not exist; a line
# of more than 90 columns that is not of a table, a code block, a comment or a link; a
# decision that revises another one, which does not say so.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t pages < <(ls ./*.md docs/*.md docs/adr/*.md charts/*/*.md)
stale=0
report_error() {
	echo "verify-docs.sh: $*" >&2
	stale=1
}

# has_heading PAGE ANCHOR
has_heading() {
	grep -E '^#+ ' "$1" | sed -E 's/^#+ //' | tr '[:upper:]' '[:lower:]' | tr -d '`.,:;()/' | tr ' ' '-' | grep -qxF -- "$2"
}

for page in "${pages[@]}"; do
	while read -r target; do
		grep -q "^${target}:" Makefile || report_error "${page}: there is no make ${target}"
	done < <(grep -oE '(^|`)make [a-z-]+' "${page}" | sed 's/.*make //' | sort -u)
	while read -r link; do
		file="${link%%#*}"
		[[ -z "${file}" || -e "$(dirname "${page}")/${file}" ]] || report_error "${page}: no such file: ${link}"
		[[ "${link}" != *'#'* ]] || has_heading "$(dirname "${page}")/${file:-$(basename "${page}")}" "${link#*#}" ||
			report_error "${page}: no such heading: ${link}"
	done < <(sed 's/`[^`]*`//g' "${page}" | grep -oE '\]\([^)]+\)' | sed -E 's/^\]\((.*)\)$/\1/' | grep -vE '^https?:')
done

while read -r line; do
	report_error "${line}"
done < <(LC_ALL=C awk '
	FNR == 1 { fenced = 0 }
	/^ *```/ { fenced = !fenced }
	fenced || /^    / || /^(\||!\[|<!--)/ { next }
	{ gsub(/\]\([^)]*\)/, "]"); gsub(/https?:[^ )]*/, "") }
	length > 90 { print FILENAME ":" FNR ": " length " columns, at most 90" }
' "${pages[@]}")

while read -r path; do
	[[ -e "${path}" ]] || report_error "$(grep -lF "\`${path}" "${pages[@]}" | paste -sd ' '): no such file: ${path}"
done < <(grep -ohE '`(apis|charts|client|cmd|config|docs|examples|hack|internal|standalone|test)/[A-Za-z0-9_./-]+' "${pages[@]}" |
	sed -E 's/^`//; s/[./]+$//' | sort -u)

while read -r name; do
	report_error "$(grep -lw "${name}" "${pages[@]}" | paste -sd ' '): there is no test ${name}"
done < <(comm -23 <(grep -ohwE '(Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]+' "${pages[@]}" | sort -u) \
	<(git grep -hoE '^func (Test|Fuzz|Benchmark)[A-Za-z0-9]+' -- '*_test.go' | cut -c 6- | sort -u))

# revisions RELATION prints "REVISING REVISED" for each decision that names another one so at its top.
revisions() {
	awk -v relation="$1" '
		FNR == 1 { own = substr(FILENAME, length("docs/adr/") + 1, 4); top = 1; named = 0 }
		FNR > 2 && /^$/ { top = 0 }
		top && FNR > 2 {
			for (i = 1; i <= NF; i++) {
				if ($i == "Revises" || $i == "Revised") named = $i == relation
				if (named && match($i, /^\[[0-9]+\]/)) {
					other = substr($i, 2, 4)
					print relation == "Revises" ? own " " other : other " " own
				}
			}
		}
	' docs/adr/[0-9]*.md | sort
}

while read -r revising revised; do
	report_error "docs/adr: ${revising} and ${revised}: one says that ${revising} revises ${revised}, and the other does not"
done < <(comm -3 <(revisions Revises) <(revisions Revised) | tr -d '\t')

[[ "${stale}" -eq 0 ]] || exit 1
echo "The docs are up to date."
