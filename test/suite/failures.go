// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// failures are the failed tests of a run, printed once more at its end: the logs of controllers may
// have pushed them out of sight.
var failures struct {
	sync.Mutex
	lines []string
}

// keepFailure keeps what failed in the output of tests. pkg is their package, empty for the output
// of go test, which has several.
func keepFailure(pkg string, output []byte) {
	failures.Lock()
	defer failures.Unlock()
	failures.lines = append(failures.lines, findFailures(pkg, string(output))...)
}

// A failure is kept by its first lines, which name the test, and its last, which often say why: the
// lines between may be logs.
const (
	firstFailureLines = 4
	lastFailureLines  = 6
	maxLineLength     = 600
)

// findFailures returns the failed tests of an output, each below the name of its package. Go prints
// a package's name after its tests.
func findFailures(pkg, output string) (found []string) {
	var unnamed, failure []string
	endFailure := func() {
		if left := len(failure) - firstFailureLines - lastFailureLines; left > 0 {
			failure = slices.Replace(failure, firstFailureLines, firstFailureLines+left, fmt.Sprintf("    (%d lines)", left))
		}
		unnamed, failure = append(unnamed, failure...), nil
	}
	endPackage := func(name string) {
		if endFailure(); len(unnamed) > 0 {
			found = append(append(found, "in "+name+":"), unnamed...)
		}
		unnamed = nil
	}
	for line := range strings.Lines(output) {
		text := strings.TrimSpace(line)
		switch fields := strings.Fields(text); {
		case strings.HasPrefix(text, "--- FAIL: "), strings.HasPrefix(text, "panic: "), strings.Contains(text, "WARNING: DATA RACE"):
			endFailure()
		case strings.HasPrefix(line, "FAIL\t") && pkg == "":
			endPackage(strings.TrimPrefix(fields[1], "cloudnative.tw/drover/"))
			continue
		case len(failure) == 0 || text == "FAIL" || text == "PASS" || strings.HasPrefix(text, "--- PASS: ") || strings.HasPrefix(text, "=== "):
			endFailure()
			continue
		}
		failure = append(failure, fmt.Sprintf("%.*s", maxLineLength, strings.TrimRight(line, "\n")))
	}
	endPackage(pkg)
	return found
}
