// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/launch"
)

const (
	// queryWithin is how long QEMU may take to answer a query about itself.
	queryWithin = 10 * time.Second
	// minMajor and minMinor are the version of the first QEMU that takes -device as JSON.
	minMajor, minMinor = 6, 2
	// machineAlias is the newest machine type of its family that a QEMU has.
	machineAlias = "q35"
)

// DefaultProgram is the QEMU that machines run on unless another is named.
const DefaultProgram = "qemu-system-x86_64"

// Program is the QEMU that machines run on. Its version is queried once.
type Program struct {
	Name string
	// Users are the users that machines on it run as.
	Users *launch.Users
	Log   logr.Logger

	mu sync.Mutex
	ok bool // its version is recent enough
	// types are the machine types that it knows, and newest is the type that machineAlias stands for.
	// They are queried again when the file was replaced, as by an upgrade of the host.
	types  map[string]bool
	newest string
	file   os.FileInfo

	confinement confine.Finder // has a separate lock
}

// Check refuses a QEMU that is missing or too old. Once it was found, machines run on it
// that need attention even while it is missing.
func (p *Program) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkLocked(ctx)
}

func (p *Program) checkLocked(ctx context.Context) error {
	if p.ok {
		return nil
	}
	out, err := p.queryOutput(ctx, "--version")
	if err != nil {
		return err
	}
	if err := checkVersion(out); err != nil {
		return errorf(ErrProgram, "%s: %w", p.Name, err)
	}
	p.ok = true
	_, _ = p.confinement.Find(ctx, p.Log, p.Name) // so that the log says at once what is missing
	return nil
}

// MinVersion is the oldest QEMU that machines run on.
var MinVersion = fmt.Sprintf("%d.%d", minMajor, minMinor)

// Version returns the version that QEMU reports of itself, whether it is recent enough or not.
func (p *Program) Version(ctx context.Context) (string, error) {
	out, err := p.queryOutput(ctx, "--version")
	if err != nil {
		return "", err
	}
	found := longVersionPattern.FindSubmatch(out)
	if found == nil {
		return "", errorf(ErrProgram, "%s: it does not print its version but %.80q", p.Name, out)
	}
	return string(found[1]), nil
}

// Landlock returns the version of Landlock that machines are confined by. Zero means none,
// and then the error says why.
func (p *Program) Landlock(ctx context.Context) (abi int, err error) {
	policy, err := p.confinement.Find(ctx, p.Log, p.Name)
	if err != nil {
		return 0, err
	}
	return policy.ABI, p.confinement.Unconfined()
}

func (p *Program) queryOutput(ctx context.Context, arguments ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, queryWithin)
	defer cancel()
	out, err := confine.Command(ctx, p.Name, arguments...).Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errorf(ErrProgram, "%s is not installed, or not in PATH", p.Name)
	}
	if err != nil {
		return nil, errorf(ErrProgram, "asking %s %s: %w", p.Name, arguments[0], err)
	}
	return out, nil
}

var (
	versionPattern     = regexp.MustCompile(`version (\d+)\.(\d+)`)
	longVersionPattern = regexp.MustCompile(`version (\d+\.\d+(\.\d+)*)`)
)

func checkVersion(out []byte) error {
	found := versionPattern.FindSubmatch(out)
	if found == nil {
		return fmt.Errorf("it does not print its version but %.80q", out)
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major < minMajor || (major == minMajor && minor < minMinor) {
		return fmt.Errorf("it is version %d.%d, and %d.%d or newer is needed", major, minor, minMajor, minMinor)
	}
	return nil
}

// typePattern matches a line of "-machine help": a name, a text, and for an alias the
// name that it stands for, in brackets.
var typePattern = regexp.MustCompile(`(?m)^(\S+) .*?(?:\(alias of (\S+)\))?\r?$`)

// MachineType returns the machine type for a machine that was made with pinned. A machine
// keeps that type for life, since another has other hardware. Where none was pinned yet,
// it is the newest that this QEMU has.
func (p *Program) MachineType(ctx context.Context, pinned string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkLocked(ctx); err != nil {
		return "", err
	}
	if err := p.queryTypes(ctx); err != nil {
		return "", err
	}
	switch {
	case pinned == "":
		return p.newest, nil
	case p.types[pinned]:
		return pinned, nil
	}
	return "", errorf(ErrMachineTypeLost,
		"the machine was made as a %s, which %s does not know, whose newest is %s: install a QEMU that knows it, as that which the machine ran on before", pinned, p.Name, p.newest)
}

func (p *Program) queryTypes(ctx context.Context) error {
	file, replaced := confine.IsReplaced(p.Name, p.file)
	if !replaced {
		return nil
	}
	out, err := p.queryOutput(ctx, "-machine", "help")
	if err != nil {
		return errorf(ErrMachineTypes, "%v", err) // the running machines can still be reached
	}
	types := map[string]bool{}
	newest := ""
	for _, found := range typePattern.FindAllStringSubmatch(string(out), -1) {
		types[found[1]] = true
		if found[1] == machineAlias {
			newest = found[2]
		}
	}
	if newest == "" {
		return errorf(ErrMachineTypes, "%s lacks a machine type %s that stands for one with a version", p.Name, machineAlias)
	}
	p.types, p.newest, p.file = types, newest, file
	return nil
}
