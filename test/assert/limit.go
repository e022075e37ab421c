// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package assert

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// A wait may take limit, or up to StarvedLimit while the host is starved, that is, while processes
// wait for a CPU most of the time.
const (
	limit        = 3 * time.Minute
	StarvedLimit = 10 * time.Minute
	// starvedShare is the share of a minute, in percent, in which some process must have waited for a CPU.
	starvedShare = 50
)

// pressureFile is documented in the kernel's Documentation/accounting/psi.rst.
const pressureFile = "/proc/pressure/cpu"

// isOver reports whether a wait of this duration is over its limit.
func isOver(waited time.Duration) bool {
	return waited > StarvedLimit || waited > limit && !isStarved(pressureFile)
}

// isStarved reports whether the host is starved. A host that does not report pressure counts as starved.
func isStarved(path string) bool {
	content, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	var avg10, avg60 float64
	if n, err := fmt.Fscanf(strings.NewReader(string(content)), "some avg10=%f avg60=%f", &avg10, &avg60); err != nil || n != 2 {
		return true
	}
	return max(avg10, avg60) >= starvedShare
}

// WaitsEnv is the variable with a file to which each wait of a second or longer adds a line: how long
// it took, in percent of limit, the test and the condition. make flakes prints the longest waits.
const WaitsEnv = "DROVER_TEST_WAITS"

const shortestRecorded = time.Second

var recording sync.Mutex

func record(test, condition string, took time.Duration) {
	path := os.Getenv(WaitsEnv)
	if path == "" || took < shortestRecorded {
		return
	}
	recording.Lock()
	defer recording.Unlock()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // the waits are only statistics
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintf(f, "%06.3f\t%s\t%s\n", took.Seconds()/limit.Seconds(), test, strings.ReplaceAll(condition, "\n", " "))
}
