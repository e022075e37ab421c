// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// systemFiles are files and folders that every QEMU may read: libraries, and files that libraries read.
var systemFiles = []string{
	"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/etc/ld.so.cache",
	"/etc/localtime", "/sys/devices/system", "/dev/urandom",
}

// firmwareDirs are folders with firmware from distributions' packages. Symbolic links in QEMU's data
// folders may lead there.
var firmwareDirs = []string{"/usr/share/qemu", "/usr/share/seabios", "/usr/share/seavgabios", "/usr/share/ipxe"}

// tryWithin is how long a trial run of QEMU may take. QEMU is told to quit at once.
const tryWithin = 10 * time.Second

// Finder finds the policy of a QEMU. It does so again when the program's file is replaced.
type Finder struct {
	mu     sync.Mutex
	policy Policy
	file   os.FileInfo
	cause  error // why the policy is without Landlock
}

// Unconfined returns why the last policy of Find is without Landlock, nil if it has Landlock.
func (f *Finder) Unconfined() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cause
}

// Find returns a policy that is sufficient for every machine on a QEMU. If a trial run of QEMU fails
// under Landlock, Find logs that and returns a policy without Landlock, so that machines still run.
func (f *Finder) Find(ctx context.Context, log logr.Logger, program string) (Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, replaced := IsReplaced(program, f.file)
	if !replaced || file == nil { // a missing QEMU fails later, when it is started
		return f.policy, nil
	}
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	policy, err := findPolicy(ctx, program)
	if ctx.Err() != nil {
		return Policy{}, fmt.Errorf("running %s confined for a trial: %w", program, ctx.Err())
	}
	if err != nil {
		log.Info("Machines are not confined by Landlock", "program", program, "cause", err.Error())
		policy = Policy{}
	} else if gaps := Gaps(policy.ABI); len(gaps) > 0 {
		log.Info("Machines are confined in part: the Landlock of this kernel does not prevent everything",
			"landlockABI", policy.ABI, "allowed", strings.Join(gaps, "; "))
	}
	f.policy, f.file, f.cause = policy, file, err
	return policy, nil
}

// IsReplaced reports whether the file of a program differs from before, or is missing.
func IsReplaced(program string, before os.FileInfo) (now os.FileInfo, replaced bool) {
	if path, err := exec.LookPath(program); err == nil {
		now, _ = os.Stat(path)
	}
	return now, now == nil || before == nil || !os.SameFile(now, before) || !now.ModTime().Equal(before.ModTime())
}

func findPolicy(ctx context.Context, program string) (Policy, error) {
	abi := ABI()
	if abi == 0 {
		return Policy{}, errors.New("this kernel lacks Landlock, or it is turned off")
	}
	found, err := exec.LookPath(program)
	if err != nil {
		return Policy{}, err
	}
	path, err := filepath.EvalSymlinks(found)
	if err != nil {
		return Policy{}, err
	}
	loader, err := findLoader(path)
	if err != nil {
		return Policy{}, err
	}
	firmware, err := Command(ctx, path, "-L", "help").Output()
	if err != nil {
		return Policy{}, fmt.Errorf("querying the firmware folders of %s: %w", path, err)
	}
	policy := PolicyOfQEMU(path, loader, strings.Fields(string(firmware)))
	policy.ABI = abi
	return policy, tryPolicy(ctx, path, policy)
}

// PolicyOfQEMU returns the policy of a QEMU. loader is its dynamic loader, and firmware its firmware folders.
func PolicyOfQEMU(path string, loader, firmware []string) Policy {
	prefix := filepath.Dir(filepath.Dir(path))
	libraries := []string{filepath.Join(prefix, "lib"), filepath.Join(prefix, "lib64")}
	return Policy{
		Execute: append(loader, path), Devices: []string{os.DevNull},
		Read: slices.Concat(systemFiles, firmwareDirs, firmware, libraries),
	}
}

// tryPolicy runs QEMU under a policy as far as it loads firmware and the emulator, and lets it quit.
func tryPolicy(ctx context.Context, path string, policy Policy) error {
	cmd := Command(ctx, path, "-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35", "-accel", "tcg", "-m", "16M", "-S", "-monitor", "stdio")
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("quit\n"), &out, &out
	err := Start(cmd, policy)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s does not run confined: %w: %.200s", path, err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// findLoader returns the dynamic loader of a program, none for a statically linked program.
func findLoader(path string) ([]string, error) {
	file, err := elf.Open(path) // fails for a script, which may need any other program
	if err != nil {
		return nil, fmt.Errorf("%s is not an ELF program: %w", path, err)
	}
	defer func() { _ = file.Close() }()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(part.Open())
			return []string{string(bytes.TrimRight(loader, "\x00"))}, err
		}
	}
	return nil, nil
}
