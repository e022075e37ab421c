// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// DroverBinary is the program that clusters run: DROVER_BIN if that is set,
// else bin/drover of this checkout, which is built if it is missing or if
// DROVER_BUILD is set.
func DroverBinary() (string, error) {
	if binary := os.Getenv("DROVER_BIN"); binary != "" {
		return binary, nil
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(root, "bin", "drover")
	unlock, err := lockBuild(root)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(binary); err == nil && os.Getenv("DROVER_BUILD") == "" {
		return binary, nil
	}
	return binary, buildDrover(root, binary)
}

// lockBuild lets one of several test programs build while the others wait.
func lockBuild(root string) (func(), error) {
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, "bin", ".build.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// buildDrover replaces the program only when the new one is complete: others may be
// running the old one.
func buildDrover(root, binary string) error {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	fresh := fmt.Sprintf("%s.%d", binary, os.Getpid())
	cmd := exec.CommandContext(ctx, "go", "build", "-o", fresh, ".")
	cmd.Dir = filepath.Join(root, "standalone")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build drover: %w\n%s", err, out)
	}
	return os.Rename(fresh, binary)
}

// BuildProgram builds a package of the root module, such as test/failover/recorder, with
// further flags of go build.
func BuildProgram(binary, pkg string, flags ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	args := append([]string{"build", "-buildvcs=false", "-o", binary}, flags...)
	if out, err := exec.CommandContext(ctx, "go", append(args, "cloudnative.tw/drover/"+pkg)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// RepositoryRoot returns the folder above the working directory that contains standalone/:
// tests run in their package's folder.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "standalone", "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside a checkout of Drover: set DROVER_BIN")
		}
		dir = up
	}
}
