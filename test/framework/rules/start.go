// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Start is the start of a server's process.
type Start struct {
	At  time.Time `json:"at"`
	PID int       `json:"pid"`
	UID types.UID `json:"uid"`
	// Run is the run for which the process was started, from the server's record.
	Run string `json:"run"`
	// Others are the processes of the same server that ran at that moment.
	Others []int `json:"others,omitempty"`
}

// StartsByUID returns the starts of each server.
func StartsByUID(all []Start) map[types.UID][]Start {
	starts := map[types.UID][]Start{}
	for _, s := range all {
		starts[s.UID] = append(starts[s.UID], s)
	}
	return starts
}

// CheckProcesses checks that a server has one process at a time, and one for each run (OneServer).
func CheckProcesses(starts []Start) (broken []Violation) {
	runs := map[string]int{}
	for _, s := range starts {
		if len(s.Others) > 0 {
			broken = append(broken, Violation{Rule: OneServer, UID: s.UID, Text: fmt.Sprintf("process %d was started at %s while %v ran", s.PID, s.At.Format(time.StampMilli), s.Others)})
		}
		if before, known := runs[s.Run]; known {
			broken = append(broken, Violation{Rule: OneServer, UID: s.UID, Text: fmt.Sprintf("process %d was started for run %q, as %d was", s.PID, s.Run, before)})
		}
		runs[s.Run] = s.PID
	}
	return broken
}
