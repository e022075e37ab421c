// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const sampleFile = "test/mutants/testdata/sample/sample.go"

// newConfig returns a config for the package sample, with a list of survivors.
func newConfig(t *testing.T, survivors string) *config {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	known := filepath.Join(t.TempDir(), "survivors.txt")
	if err := os.WriteFile(known, []byte(survivors), 0o600); err != nil {
		t.Fatal(err)
	}
	return &config{
		root: root, work: t.TempDir(), files: []string{sampleFile}, suites: []suite{{folder: filepath.Dir(sampleFile)}},
		known: known, only: regexp.MustCompile(""), workers: 2,
	}
}

// survivors are those of package sample: its tests do not look at them.
const survivors = `
PLACE Log.Add drop: defer func() { l.open = false }()
PLACE Log.Add drop: l.open = false
PLACE Log.Add bool: false => true
PLACE Log.Add drop: l.open = true
PLACE Log.Add bool: true => false
PLACE Wait return: return 2 * time.Second => zero values
PLACE Wait number: 2 * time.Second => 3s
PLACE Wait number: 2 * time.Second => 1s
PLACE Wait number: 2 * time.Second => 0s
PLACE Kind negate: n == 0 => n != 0
PLACE Kind number: 0 => 1
PLACE Kind compare: n < -1 => n <= -1
PLACE Kind compare: n < -1 => n >= -1
PLACE Kind number: -1 => -2
PLACE Kind return: return "odd" => zero values
PLACE Range.Swap drop: r.From, r.To, *count = r.To, r.From, *count+1 => without *count = *count+1
PLACE Range.Swap number: 1 => 2
PLACE Range.Swap number: 1 => 0
PLACE NewRange field: Name: "from " + Kind(int32(from))
   No test looks.
`

func TestExplore(t *testing.T) {
	want := strings.ReplaceAll(survivors, "PLACE", sampleFile)
	first, _, _ := strings.Cut(strings.TrimSpace(want), "\n")
	for name, tc := range map[string]struct{ known, problem string }{
		"the list is right":       {known: want},
		"a survivor is not in it": {known: strings.Replace(want, first+"\n", "", 1), problem: "survives and is not listed (" + sampleFile + ":22): " + first},
		"one of it is killed":     {known: sampleFile + " First negate: n <= 0\n" + want, problem: "listed, and no mutant"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := newConfig(t, tc.known).explore(t.Context(), &out)
			if (err == nil) != (tc.problem == "") || !strings.Contains(out.String(), tc.problem) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
