// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// KeepInMemory returns the path of a kubeconfig in memory, which cannot be changed. It need not be removed,
// and plugins inherit it.
func KeepInMemory(content []byte) (string, error) {
	fd, err := unix.MemfdCreate("kubeconfig", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", fmt.Errorf("create a file in memory: %w", err)
	}
	for rest := content; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return "", fmt.Errorf("write a file in memory: %w", err)
		}
		rest = rest[n:]
	}
	const sealed = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		return "", fmt.Errorf("protect a file in memory: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}
