// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"os"
	"strings"

	"cloudnative.tw/drover/internal/machine"
)

// Reasons for an end beside those of package machine.
const (
	// endNotStarted means that the guest never ran. A later try may succeed.
	endNotStarted = "NotStarted"
	// endInvalid means that the description or the flags are wrong.
	endInvalid = "InvalidDescription"
)

// exitCodes are the exit codes of the program, by reason. 1 and 2 are left to failures of Go
// itself, and codes from 125 on to shells and container engines.
var exitCodes = map[string]int{
	machine.EndCompleted:     0,
	machine.EndPanicked:      3,
	machine.EndInternalError: 4,
	machine.EndKilled:        5,
	machine.EndForced:        6,
	endNotStarted:            7,
	endInvalid:               8,
}

// maxMessage is less than the 4,096 bytes that a kubelet takes.
const maxMessage = 2 << 10

// end is why the program ends.
type end struct {
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// StopRequested is set if a signal requested the end.
	StopRequested bool `json:"stopRequested,omitempty"`
	// Disks are those that were there, or were made: a guest that has not run may have none.
	Disks disks `json:"disks,omitzero"`
	// TooLarge is set if an image is larger than its disk may be, which no later try changes.
	TooLarge *imageSizeError `json:"tooLarge,omitempty"`
}

// disks are disks of a machine.
type disks struct {
	Root    bool     `json:"root,omitempty"`
	Volumes []string `json:"volumes,omitempty"`
}

func (e end) code() int { return exitCodes[e.Reason] }

// writeMessage writes the termination message. The file may be a mount, which cannot be replaced.
func (e end) writeMessage(path string) error {
	if path == "" {
		return nil
	}
	e.Message = strings.ToValidUTF8(e.Message[:min(len(e.Message), maxMessage)], "")
	content, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) //nolint:gosec // for the kubelet
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
