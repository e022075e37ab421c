// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cloudnative.tw/drover/test/framework/filelock"
)

// DroverBinary is the program that clusters run: DROVER_BIN if that is set, else bin/drover of
// this checkout, which make build builds.
func DroverBinary() (string, error) {
	if binary := os.Getenv("DROVER_BIN"); binary != "" {
		return binary, nil
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(root, "bin", "drover")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	return "", fmt.Errorf("%s is missing: run make build, or set DROVER_BIN", binary)
}

// BuildProgram builds a package of the root module, such as test/failover/recorder, with
// further flags of go build.
func BuildProgram(binary, pkg string, flags ...string) error {
	return buildBinary(binary, "cloudnative.tw/drover/"+pkg, nil, flags...)
}

// ReadMachine returns the drover-machine that make build has made.
func ReadMachine() ([]byte, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(root, "bin", "drover-machine")) // #nosec -- of the checkout
}

// BuildController builds drover-controller, and drover-machine beside it, with further flags of go build for both.
func BuildController(binary string, flags ...string) error {
	if err := BuildProgram(binary, "cmd/drover-controller", flags...); err != nil {
		return err
	}
	return buildBinary(filepath.Join(filepath.Dir(binary), "drover-machine"), "cloudnative.tw/drover/cmd/drover-machine", []string{"CGO_ENABLED=0"}, flags...)
}

// BuildStatic is BuildProgram for one that needs no libraries, such as a guest's.
func BuildStatic(binary, pkg string) error {
	return buildBinary(binary, "cloudnative.tw/drover/"+pkg, []string{"CGO_ENABLED=0"})
}

// BuildMachine builds drover-machine, a static program as make build makes it.
func BuildMachine(binary string) error { return BuildStatic(binary, "cmd/drover-machine") }

// buildBinary builds a program of the checkout, with variables on top of the
// environment. It is linked into the folder that hack/cache.sh prints, where go links it again only
// if it would differ, and copied from there. One of several callers builds while the others wait.
func buildBinary(binary, pkg string, env []string, flags ...string) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	cache, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "cache.sh")).Output()
	if err != nil {
		return fmt.Errorf("hack/cache.sh: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendln(nil, pkg, env, flags))
	kept := filepath.Join(strings.TrimSpace(string(cache)), "programs", hex.EncodeToString(sum[:6]))
	unlock, err := filelock.Lock(kept + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", kept}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	content, err := os.ReadFile(kept) // #nosec -- just built
	if err != nil {
		return err
	}
	return os.WriteFile(binary, content, 0o755) // #nosec -- a program
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
