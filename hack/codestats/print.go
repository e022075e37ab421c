// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// What a package may have at most; larger ones are marked.
const (
	maxFiles = 12
	maxLines = 2000
)

func (s *stats) print(out io.Writer, methods map[string]int) {
	var all packageStats
	for _, p := range s.packages {
		all.files += p.files
		all.lines += p.lines
		all.names = append(all.names, p.names...)
		all.lengths = append(all.lengths, p.lengths...)
	}
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }

	printf("%-22s %6s %7s %7s\n", "", "files", "lines", "words")
	printf("%-22s %6d %7d          in %d packages\n", "Go of the programs", all.files, all.lines, len(s.packages))
	for _, row := range []struct {
		name string
		size
	}{
		{"Go of tests", s.tests},
		{"shell", s.shell},
		{"YAML", s.yaml},
		{"README", s.readme},
		{"ADRs", s.decisions},
		{"other pages", s.pages},
		{"generated pages", s.generated},
	} {
		printf("%-22s %6d %7d %7d\n", row.name, row.files, row.lines, row.words)
	}
	printf("\n%d flags, %d reasons of conditions and events\n", s.flags, s.reasons)
	printf("Types with more than %d methods, those of embedded types included:", maxMethods)
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if methods[name] > maxMethods {
			printf(" %s %d;", name, methods[name])
		}
	}
	printf("\n\n")
	printf("Unexported functions and methods\n")
	printf("  one-word names       %4d of %d, %.0f %%\n", all.oneWordNames(), len(all.names), all.oneWordShare())
	printf("  length of a name     %4d letters in the median\n\n", percentile(nameLengths(all.names), 50))
	printf("Lines of a function's body\n")
	printf("  median               %4d\n  99th percentile      %4d\n  longest              %4d\n\n",
		percentile(all.lengths, 50), percentile(all.lengths, 99), percentile(all.lengths, 100))

	printf("%-44s %5s %6s %9s %7s\n", "package", "files", "lines", "one-word", "longest")
	for _, folder := range slices.Sorted(maps.Keys(s.packages)) {
		p := s.packages[folder]
		printf("%-44s %5d %6d %7.0f %% %7d%s\n", folder, p.files, p.lines, p.oneWordShare(), percentile(p.lengths, 100), p.mark())
	}
	s.printLanguage(out, all.lines)
}

// printLanguage prints how many odd constructions of English there are.
func (s *stats) printLanguage(out io.Writer, programLines int) {
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
	programs, others, pages := share{size: programLines}, share{size: -programLines}, share{}
	byPattern := map[string]int{}
	for name, w := range s.wordings {
		group := &others
		if isPage(name) {
			group = &pages
		}
		group.size += w.size
		for _, o := range w.oddities {
			byPattern[o.pattern.name]++
			if isProduction(o.file) && !isPage(name) {
				programs.count++
			} else {
				group.count++
			}
		}
	}

	printf("\n%-56s %6s %6s %9s\n", "odd constructions of English", "number", "size", "per 1,000")
	printf("%-56s %s lines\n", "Go of the programs", programs)
	printf("%-56s %s lines\n", "Go of tests and tools", others)
	printf("%-56s %s words\n\n", "pages that are not generated", pages)
	for _, p := range patterns {
		printf("%-56s %6d\n", p.name, byPattern[p.name])
	}
	printf("\n%-56s %6s %6s %9s\n", "package (lines, tests included) or page (words)", "number", "size", "per 1,000")
	for _, name := range slices.Sorted(maps.Keys(s.wordings)) {
		printf("%-56s %s\n", name, share{len(s.wordings[name].oddities), s.wordings[name].size})
	}
}

// share is a number of oddities in lines or words.
type share struct{ count, size int }

func (s share) String() string {
	return fmt.Sprintf("%6d %6d %9.1f", s.count, s.size, 1000*float64(s.count)/float64(max(1, s.size)))
}

func isPage(name string) bool { return strings.HasSuffix(name, ".md") }

func (p *packageStats) oneWordNames() int {
	count := 0
	for _, name := range p.names {
		if isOneWord(name) {
			count++
		}
	}
	return count
}

// oneWordShare is in per cent.
func (p *packageStats) oneWordShare() float64 {
	if len(p.names) == 0 {
		return 0
	}
	return 100 * float64(p.oneWordNames()) / float64(len(p.names))
}

// mark says by which limit a package is too large.
func (p *packageStats) mark() string {
	text := ""
	if p.files > maxFiles {
		text += fmt.Sprintf("  over %d files", maxFiles)
	}
	if p.lines > maxLines {
		text += fmt.Sprintf("  over %d lines", maxLines)
	}
	return text
}

func nameLengths(names []string) []int {
	lengths := make([]int, 0, len(names))
	for _, name := range names {
		lengths = append(lengths, utf8.RuneCountInString(name))
	}
	return lengths
}

// percentile returns the smallest value that so many per cent do not exceed.
func percentile(values []int, percent int) int {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}
