// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Numbers of signals on Linux, which are the same on amd64 and arm64. The host that checks a
// name may be another system.
const (
	sigTerm   = 15
	sigRTMin  = 34 // as glibc and musl count: the first two are theirs
	sigRTMax  = 64
	maxSignal = 64
)

var signals = map[string]int{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "IOT": 6, "BUS": 7, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": sigTerm, "STKFLT": 16, "CHLD": 17,
	"CLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25,
	"VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29, "POLL": 29, "PWR": 30, "SYS": 31,
	"RTMIN": sigRTMin, "RTMAX": sigRTMax,
}

// ParseSignal returns the number of a signal that an image names, SIGTERM for an empty name.
func ParseSignal(name string) (int, error) {
	if name == "" {
		return sigTerm, nil
	}
	short := strings.TrimPrefix(strings.ToUpper(name), "SIG")
	number, known := signals[short]
	if n, err := strconv.ParseUint(name, 10, 8); err == nil {
		number, known = int(n), true
	}
	for _, base := range []string{"RTMIN+", "RTMAX-"} {
		if digits, ok := strings.CutPrefix(short, base); ok {
			n, err := strconv.ParseUint(digits, 10, 8)
			number, known = sigRTMin+int(n), err == nil
			if base == "RTMAX-" {
				number = sigRTMax - int(n)
			}
			known = known && number >= sigRTMin
		}
	}
	if !known || number < 1 || number > maxSignal {
		return 0, fmt.Errorf("%.40q is not a signal: want a name such as SIGTERM or SIGRTMIN+3, or a number from 1 to %d", name, maxSignal)
	}
	return number, nil
}
