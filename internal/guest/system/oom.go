// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"errors"
	"os"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// Killed is a process that the kernel has killed because the machine's memory ran out.
type Killed struct {
	PID  int
	Name string
}

// killedLine is a record of /dev/kmsg about such a process. Its priority has one digit: a record that a process has written
// has the facility "user" in it, and so a larger number. A control group whose memory ran out has other words.
var killedLine = regexp.MustCompile(`^[0-7],[^;]*;Out of memory[^:]*: Killed process (\d+) \((.*)\) total-vm:`)

// LastKilled returns the last process in the kernel's log that was killed for lack of memory.
func LastKilled() (last Killed, found bool, err error) {
	log, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return last, false, &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	defer func() { _ = unix.Close(log) }()
	record := make([]byte, 8<<10) // each read returns one record
	for {
		n, err := unix.Read(log, record)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // records were overwritten, or the call was interrupted
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return last, found, nil
		case err != nil:
			return last, found, err
		}
		if killed, ok := parseKilled(record[:n]); ok {
			last, found = killed, true
		}
	}
}

func parseKilled(record []byte) (killed Killed, ok bool) {
	match := killedLine.FindSubmatch(record)
	if match == nil {
		return killed, false
	}
	pid, err := strconv.Atoi(string(match[1]))
	return Killed{PID: pid, Name: string(match[2])}, err == nil
}
