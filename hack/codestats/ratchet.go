// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// numbersFile has a line for each package and each page: how many oddities it has. A package
// without a line has none.
const numbersFile = "hack/codestats/odd-english.txt"

// numbersHead begins numbersFile.
const numbersHead = `# How many odd constructions of English each package (its tests included) and each page
# has. A number may only fall: make lint checks it, make codestats ARGS=-lower writes it.
`

func readNumbers(root string) (map[string]int, error) {
	text, err := os.ReadFile(filepath.Join(root, numbersFile))
	if err != nil {
		return nil, err
	}
	numbers := map[string]int{}
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for line := 1; lines.Scan(); line++ {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		name, number, _ := strings.Cut(lines.Text(), " ")
		if numbers[name], err = strconv.Atoi(number); err != nil || numbers[name] < 1 {
			return nil, fmt.Errorf("%s:%d: %q is not a name and a number above 0", numbersFile, line, lines.Text())
		}
	}
	return numbers, lines.Err()
}

// writeNumbers writes for each package the lower of two numbers: of its oddities, and of those allowed until now.
func (s *stats) writeNumbers(root string, allowed map[string]int) error {
	var text strings.Builder
	text.WriteString(numbersHead)
	for _, name := range slices.Sorted(maps.Keys(s.wordings)) {
		if number := min(len(s.wordings[name].oddities), allowed[name]); number > 0 {
			_, _ = fmt.Fprintf(&text, "%s %d\n", name, number)
		}
	}
	return os.WriteFile(filepath.Join(root, numbersFile), []byte(text.String()), 0o644)
}

// printRisen prints the oddities of each package that has more than its number allows, and
// returns how many packages these are.
func (s *stats) printRisen(out io.Writer, allowed map[string]int) int {
	risen := 0
	for _, name := range slices.Sorted(maps.Keys(s.wordings)) {
		oddities := s.wordings[name].oddities
		if len(oddities) <= allowed[name] {
			continue
		}
		risen++
		_, _ = fmt.Fprintf(out, "%s has %d odd constructions of English, at most %d are allowed:\n", name, len(oddities), allowed[name])
		for _, o := range slices.SortedStableFunc(slices.Values(oddities), compareOddities) {
			_, _ = fmt.Fprintf(out, "\t%s:%d: %s: %q: %s\n", o.file, o.line, o.pattern.name, o.text, o.pattern.instead)
		}
	}
	return risen
}

func compareOddities(a, b oddity) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
}

// printFallen prints the packages that have fewer oddities than their number says, and returns
// how many these are.
func (s *stats) printFallen(out io.Writer, allowed map[string]int) int {
	fallen := 0
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		count := 0
		if w := s.wordings[name]; w != nil {
			count = len(w.oddities)
		}
		if count < allowed[name] {
			fallen++
			_, _ = fmt.Fprintf(out, "%s has only %d odd constructions of English left, its number is %d\n", name, count, allowed[name])
		}
	}
	return fallen
}

// maxWordsOfDocs is how many words docs/ may have, decisions included, without generated pages.
const maxWordsOfDocs = 60_000

// countWordsOfDocs returns how many words docs/ has without generated pages.
func (s *stats) countWordsOfDocs() (words int) {
	for name, w := range s.wordings {
		if strings.HasPrefix(name, "docs/") {
			words += w.size
		}
	}
	return words
}

// checkLanguage fails unless each package has exactly as many oddities as its number says, and docs/ is short enough.
func (s *stats) checkLanguage(out io.Writer, root string) error {
	allowed, err := readNumbers(root)
	if err != nil {
		return err
	}
	risen := s.printRisen(out, allowed)
	fallen := s.printFallen(out, allowed)
	switch {
	case risen > 0:
		return fmt.Errorf("odd English has increased in %d packages or pages: reword it as the lines above say", risen)
	case fallen > 0:
		return fmt.Errorf("odd English has decreased in %d packages or pages: run make codestats ARGS=-lower", fallen)
	case s.countWordsOfDocs() > maxWordsOfDocs:
		return fmt.Errorf("docs/ has %d words without generated pages, at most %d are allowed: remove facts that another page has", s.countWordsOfDocs(), maxWordsOfDocs)
	}
	return nil
}

// lowerNumbers writes the numbers that have fallen. It fails if one has risen, which stays as it was.
func (s *stats) lowerNumbers(out io.Writer, root string) error {
	allowed, err := readNumbers(root)
	if err != nil {
		return err
	}
	if err := s.writeNumbers(root, allowed); err != nil {
		return err
	}
	if risen := s.printRisen(out, allowed); risen > 0 {
		return fmt.Errorf("odd English has increased in %d packages or pages, whose numbers stay: reword it as the lines above say", risen)
	}
	return nil
}
