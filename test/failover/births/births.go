// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package births has what the recorder, beside this folder, writes down of each
// QEMU that is started, and how both it and the test find those that run.
package births

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

// Suffix is that of the file of births, beside the recorder.
const Suffix = ".births"

// ProcessStart is the start of a QEMU.
type ProcessStart struct {
	At  time.Time `json:"at"`
	PID int       `json:"pid"`
	UID types.UID `json:"uid"`
	// Run is the one that it was started for, as the server's record has it.
	Run string `json:"run"`
	// Others are the processes of the same server that ran at that moment.
	Others []int `json:"others,omitempty"`
}

// Processes are those that run for a server. One that has ended and that nobody
// has waited for yet has no command line.
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

// Read returns all births that were written down; no file is none.
func Read(path string) ([]ProcessStart, error) {
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
