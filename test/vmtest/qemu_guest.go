// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// BootGuest assembles hack/guest/boot.s into an image of dir. The letter ends
// its banner; a stubborn guest ignores the power button.
func BootGuest(t testing.TB, dir, letter string, stubborn bool) string {
	t.Helper()
	root, err := repoRoot()
	if err != nil {
		t.Fatal(err)
	}
	deaf := "0"
	if stubborn {
		deaf = "1"
	}
	path := filepath.Join(dir, "boot-"+letter+deaf+".img")
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "boot-guest.sh"), path, letter, deaf).CombinedOutput()
	if err != nil {
		t.Fatalf("assembling the guest: %v\n%s", err, out)
	}
	return path
}

// Linux is the Linux guest of hack/guest/linux.
type Linux struct {
	Kernel, Initrd string
}

// LinuxGuest builds the Linux guest in bin/guest of this checkout and returns
// copies of its files in dir.
func LinuxGuest(t testing.TB, dir string) Linux {
	t.Helper()
	built, err := linuxGuest()
	if err != nil {
		t.Fatal(err)
	}
	g := Linux{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd")}
	for from, to := range map[string]string{built.Kernel: g.Kernel, built.Initrd: g.Initrd} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// linuxGuest builds it once per process.
var linuxGuest = sync.OnceValues(func() (Linux, error) {
	root, err := repoRoot()
	if err != nil {
		return Linux{}, err
	}
	unlock, err := lockBuild(root)
	if err != nil {
		return Linux{}, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), imagesWithin)
	defer cancel()
	dir := filepath.Join(root, "bin", "guest")
	out, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "linux-guest.sh"), dir).CombinedOutput()
	if err != nil {
		return Linux{}, fmt.Errorf("building the Linux guest: %w\n%s", err, out)
	}
	return Linux{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd")}, nil
})
