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

// Reasons for an end, in addition to machine.EndCompleted and so on.
const (
	// endNotStarted means that the guest never ran. A later try may succeed.
	endNotStarted = "NotStarted"
	// endInvalid means that the description or the flags are wrong.
	endInvalid = "InvalidDescription"
)

// exitCodes are the exit codes of the program, by reason. Go itself uses 1 and 2 for failures;
// shells and container engines use codes from 125 on.
var exitCodes = map[string]int{
	machine.EndCompleted:     0,
	machine.EndPanicked:      3,
	machine.EndInternalError: 4,
	machine.EndKilled:        5,
	machine.EndForced:        6,
	endNotStarted:            7,
	endInvalid:               8,
}

// maxMessage bounds the message, since a kubelet reads at most 4,096 bytes of the file.
const maxMessage = 2 << 10

// end is the termination message: why the program ends.
type end struct {
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// StopRequested is set if a signal requested the end.
	StopRequested bool `json:"stopRequested,omitempty"`
	// Disks are the disks that exist. If the guest never ran, some may be missing.
	Disks disks `json:"disks,omitzero"`
	// TooLarge is set if an image is larger than its disk may be. A later try fails as well.
	TooLarge *imageSizeError `json:"tooLarge,omitempty"`
}

// disks are disks of a machine: the root disk, and volumes by name.
type disks struct {
	Root    bool     `json:"root,omitempty"`
	Volumes []string `json:"volumes,omitempty"`
}

func (e end) code() int { return exitCodes[e.Reason] }

// writeMessage writes the termination message in place, since the file may be a mount that cannot be replaced.
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
