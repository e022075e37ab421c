// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// failures are the failed tests of a run, which are printed again at its end, after the logs of
// controllers.
var failures struct {
	sync.Mutex
	lines []string
}

// keepFailure adds the failed tests in an output. pkg is their package; it is empty for an output of
// go test, which has several packages.
func keepFailure(pkg string, output []byte) {
	failures.Lock()
	defer failures.Unlock()
	failures.lines = append(failures.lines, findFailures(pkg, string(output))...)
}

// The first lines of a failure are kept, which name the test, and the last, which often have the
// cause. The lines between may be logs.
const (
	firstFailureLines = 4
	lastFailureLines  = 6
	maxLineLength     = 600
)

// findFailures returns the failed tests in an output, each after the name of its package, which go
// prints after the package's tests.
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
