// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"cloudnative.tw/drover/internal/driver"
)

// checkMemory refuses a guest that the host has no room for.
func checkMemory(needed int64) error {
	available, err := memoryAvailable("/proc/meminfo")
	if err != nil {
		return nil //nolint:nilerr // A host that does not tell is tried.
	}
	if needed > available {
		return driver.Errorf(driver.ErrExhausted, "resource.memory: needed %d bytes, available on the host %d", needed, available)
	}
	return nil
}

func memoryAvailable(path string) (int64, error) {
	f, err := os.Open(path) //nolint:gosec // a constant
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s does not tell MemAvailable", path)
}
