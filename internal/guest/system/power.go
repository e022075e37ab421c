// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Of linux/input-event-codes.h: the event of a key, the power key, and its press.
const (
	eventKey   = 1
	keyPower   = 116
	keyPressed = 1
	// eventLength is the size of struct input_event with 64-bit times; type, code and value are at its end.
	eventLength = 24
)

// WatchPowerButton calls pressed at each press of the power button, until the machine ends.
func WatchPowerButton(pressed func()) error {
	paths, err := filepath.Glob("/dev/input/event*")
	if err != nil {
		return err
	}
	for _, path := range paths {
		device, err := os.Open(path) //nolint:gosec // of this machine
		if err != nil {
			return err
		}
		go watchKeys(device, pressed)
	}
	return nil
}

func watchKeys(device *os.File, pressed func()) {
	defer func() { _ = device.Close() }()
	events := make([]byte, 64*eventLength)
	for {
		n, err := device.Read(events)
		if err != nil {
			return
		}
		for e := events[:n]; len(e) >= eventLength; e = e[eventLength:] {
			kind, code, value := binary.NativeEndian.Uint16(e[16:]), binary.NativeEndian.Uint16(e[18:]), binary.NativeEndian.Uint32(e[20:])
			if kind == eventKey && code == keyPower && value == keyPressed {
				pressed()
			}
		}
	}
}

// PowerOff ends the machine. It returns only if the kernel refuses.
func PowerOff() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) }

// Restart boots the machine again. It returns only if the kernel refuses.
func Restart() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) }

// KillAll ends all processes but this one, if it is the first.
func KillAll() error { return unix.Kill(-1, unix.SIGKILL) }
