// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"cloudnative.tw/drover/internal/policy/decisions"
)

// lastDecisions is how many FormatDecisions shows.
const lastDecisions = 30

// ReadDecisions returns what controllers have decided, from files in which they recorded that, in
// the order of time. A process may have recorded none, and one that was killed a part of the last.
func ReadDecisions(paths ...string) (all []decisions.Record, err error) {
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(content) == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := decisions.Read(bytes.NewReader(content))
		if err != nil && (len(f.Records) > 0 || f.Broken == 0) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, f.Records...)
	}
	slices.SortStableFunc(all, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	return all, nil
}

// FormatDecisions returns the last ones in sentences, for who looks for the cause of a violation.
func FormatDecisions(all []decisions.Record) string {
	return decisions.Format(all[max(0, len(all)-lastDecisions):]...)
}

// CheckDecisions checks that decisions come out the same when they are derived again.
func CheckDecisions(all []decisions.Record) (broken []Violation) {
	for _, r := range all {
		if differences := r.Replay(); len(differences) > 0 {
			broken = append(broken, Broken(O14, "decision %d of %s about %s differs when it is derived again: %+v", r.Sequence, r.Replica, r.Key(), differences))
		}
	}
	return broken
}
