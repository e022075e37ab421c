// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestReports derives the decisions of each file in testdata again. A user's report becomes a
// test there: its decisions as Drover should have made them, in the form of --decisions or of
// kubectl vm explain --history -o json.
func TestReports(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json*")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no reports: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			file, err := os.Open(path)
			assert.NoError(t, err)
			defer func() { _ = file.Close() }()
			report, err := Read(file)
			if err != nil || report.Broken > 0 {
				t.Fatalf("%v, %d lines are broken", err, report.Broken)
			}
			for i := range report.Records {
				differences, err := report.Records[i].Replay()
				if err != nil || len(differences) > 0 {
					t.Errorf("%v %+v\n%s", err, differences, Format(report.Records[i]))
				}
			}
		})
	}
}
