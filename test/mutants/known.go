// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// readKnown reads the list of mutants that survive, with the reason of each. A mutant is a
// line as Mutant.String has it, or several; the reason is below, and indented. A line that
// begins with # is a comment.
func readKnown(name string) (map[string]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	known := map[string]string{}
	var pending []string
	hasReason := false
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		reason := strings.TrimSpace(line)
		switch {
		case reason == "" || strings.HasPrefix(line, "#"):
		case reason != line && len(pending) == 0:
			return nil, fmt.Errorf("%s:%d: a reason without a mutant above it", name, n)
		case reason != line:
			for _, mutant := range pending {
				known[mutant] = strings.TrimSpace(known[mutant] + " " + reason)
			}
			hasReason = true
		default:
			if hasReason {
				pending, hasReason = nil, false
			}
			if _, again := known[line]; again {
				return nil, fmt.Errorf("%s:%d: listed twice", name, n)
			}
			known[line] = ""
			pending = append(pending, line)
		}
	}
	for mutant, reason := range known {
		if reason == "" {
			return nil, fmt.Errorf("%s: no reason for: %s", name, mutant)
		}
	}
	return known, lines.Err()
}

// compareKnown returns what is wrong with the list: a survivor that it lacks, or an entry
// that is killed or is no mutant any more. all are the mutants that were tried, of those
// that exist.
func compareKnown(known map[string]string, exists map[string]bool, all []outcome) (problems []string) {
	for _, o := range all {
		_, listed := known[o.mutant.String()]
		switch {
		case listed && o.killer != "":
			problems = append(problems, fmt.Sprintf("listed, and killed by %s: %s", o.killer, o.mutant))
		case !listed && o.killer == "":
			problems = append(problems, fmt.Sprintf("survives and is not listed (%s:%d): %s", o.mutant.File, o.mutant.Line, o.mutant))
		}
	}
	for mutant := range known {
		if !exists[mutant] {
			problems = append(problems, "listed, and no mutant: "+mutant)
		}
	}
	return problems
}
