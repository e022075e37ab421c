// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package processlog defines the records that the recorder, beside this folder, writes
// for each QEMU that is started. It also has the search for running QEMUs, which the
// recorder and the test share.
package processlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// StartsSuffix is the suffix of the file of starts, which is beside the recorder.
const StartsSuffix = ".starts"

// ProcessStart is the start of a QEMU.
type ProcessStart struct {
	At  time.Time `json:"at"`
	PID int       `json:"pid"`
	UID types.UID `json:"uid"`
	// Run is the run for which it was started, from the server's record.
	Run string `json:"run"`
	// Others are the processes of the same server that ran at that moment.
	Others []int `json:"others,omitempty"`
}

// Processes returns the processes that run for a server. A process that has ended
// and was not reaped yet has no command line.
func Processes(uid types.UID) ([]int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00-uuid\x00"+string(uid)+"\x00")) {
			continue // it may have ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// ReadStarts returns all recorded starts; a missing file means none.
func ReadStarts(path string) ([]ProcessStart, error) {
	content, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	var all []ProcessStart
	for line := range bytes.Lines(content) {
		var b ProcessStart
		if err := json.Unmarshal(line, &b); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
		all = append(all, b)
	}
	return all, err
}
