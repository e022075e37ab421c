// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// Mutant is one small change of the code.
type Mutant struct {
	// Number activates it in the binaries of this run.
	Number   int
	File     string // from the module's folder
	Line     int
	Function string
	Operator string
	// Original is the code, and Mutated what it becomes; empty if it is dropped.
	Original, Mutated string
	// Ordinal tells apart mutants of a function that are the same otherwise, from 1.
	Ordinal int
}

// String returns what identifies a mutant as long as its function does not change much.
// It has no line, since that changes with any other function.
func (m Mutant) String() string {
	text := fmt.Sprintf("%s %s %s: %s", m.File, m.Function, m.Operator, m.Original)
	if m.Mutated != "" {
		text += " => " + m.Mutated
	}
	if m.Ordinal > 1 {
		text += fmt.Sprintf(" #%d", m.Ordinal)
	}
	return text
}

// numberMutants sets the ordinals.
func numberMutants(mutants []Mutant) {
	count := map[string]int{}
	for n := range mutants {
		key := mutants[n].String()
		count[key]++
		mutants[n].Ordinal = count[key]
	}
}

var space = regexp.MustCompile(`\s+`)

// maxOriginal bounds how much of the code stands in lists.
const maxOriginal = 120

func shorten(code string) string {
	code = strings.TrimSpace(space.ReplaceAllString(code, " "))
	if runes := []rune(code); len(runes) > maxOriginal {
		return string(runes[:maxOriginal]) + "…"
	}
	return code
}
