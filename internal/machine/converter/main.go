// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package converter

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine/confine"
)

const (
	// memoryLimit is the soft limit of Go's memory, and maxMemory the hard limit of the kernel. An
	// image with the most files that rootfs allows needs less.
	memoryLimit = "1GiB"
	maxMemory   = 2 << 30
	// gcPercent is Go's default. The main function of drover-machine has set a lower one, for supervisors.
	gcPercent = 100
	// noPidfd stands for a missing descriptor, since the program signals no process.
	noPidfd = -1
)

// Main converts one image, prints the result as JSON, and returns the exit code of the program.
func Main(arguments []string) int {
	if err := runMain(arguments); err != nil {
		fmt.Fprintln(os.Stderr, "drover-machine:", err)
		return 1
	}
	return 0
}

func runMain(arguments []string) error {
	if len(arguments) != 0 {
		return fmt.Errorf("%s takes no arguments", Command)
	}
	if err := confineSelf(); err != nil {
		return err
	}
	result := rootfs.Convert(os.Stdin, rootfs.SentOutput{To: os.NewFile(outputFD, "output")})
	return json.NewEncoder(os.Stdout).Encode(result)
}

// Rights are the rights of the converter.
var Rights confine.Rights

// confineSelf drops all rights that this process does not need, before it reads input.
func confineSelf() error {
	debug.SetGCPercent(gcPercent)
	unix.CloseOnExec(outputFD)
	_ = unix.Close(programFD)
	signal.Ignore(unix.SIGXFSZ, unix.SIGPIPE) // writes then fail with an error instead
	for resource, limit := range map[int]uint64{unix.RLIMIT_FSIZE: 0, unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limiting resource %d: %w", resource, err)
		}
	}
	return confine.DenyStarts(noPidfd, Rights)
}
