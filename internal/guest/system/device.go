// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/modules"
)

// Devices appear a while after their module is loaded.
const (
	lookEvery  = 2 * time.Millisecond
	lookWithin = 20 * time.Second
)

// ModulesOrder is the file with the names of modules, one a line, each after those that it needs.
const ModulesOrder = "modules.order"

// LoadModules loads the modules of the initramfs in their order.
func LoadModules() error {
	order, err := os.ReadFile(filepath.Join(modulesDir, ModulesOrder))
	if err != nil {
		return fmt.Errorf("the initramfs lacks the list of modules: %w", err)
	}
	for name := range strings.FieldsSeq(string(order)) {
		if err := modules.Insert(filepath.Join(modulesDir, filepath.Base(name))); err != nil {
			return fmt.Errorf("load the module %s: %w", name, err)
		}
	}
	return nil
}

// ReadConfig reads a file that QEMU hands to the guest, of at most so many bytes.
func ReadConfig(name string, most int64) ([]byte, error) {
	f, err := os.Open(filepath.Join("/sys/firmware/qemu_fw_cfg/by_name", name, "raw")) //nolint:gosec // a name of this program
	if err != nil {
		return nil, fmt.Errorf("QEMU hands no configuration to this guest: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("the configuration has more than %d bytes", most)
	}
	return text, err
}

// FindDisk returns the device of the disk with a serial number.
func FindDisk(serial string) (string, error) {
	return find("/sys/block/*/serial", serial, "disk with the serial number")
}

// FindPort returns the device of the virtio-serial port of a name.
func FindPort(name string) (string, error) {
	return find("/sys/class/virtio-ports/*/name", name, "virtio-serial port")
}

// find waits for the device whose attribute has a value.
func find(pattern, value, kind string) (string, error) {
	for range lookWithin / lookEvery {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path) //nolint:gosec // of sysfs
			device := filepath.Join("/dev", filepath.Base(filepath.Dir(path)))
			if err == nil && strings.TrimSpace(string(text)) == value && exists(device) {
				return device, nil
			}
		}
		<-time.After(lookEvery)
	}
	return "", fmt.Errorf("the machine has no %s %q", kind, value)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// OpenResult opens the disk that takes the results. A write returns once the host has it.
func OpenResult(serial string) (*os.File, error) {
	path, err := FindDisk(serial)
	if err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_SYNC, 0) //nolint:gosec // a device
}

// OpenPort opens a port that is only written to. It is open until the machine ends, so no other
// program can open it.
func OpenPort(name string) (*os.File, error) {
	path, err := FindPort(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the port %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
