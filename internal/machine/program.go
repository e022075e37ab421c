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
	// minMajor and minMinor are the first version of QEMU that accepts -device as JSON.
	minMajor, minMinor = 6, 2
	// machineAlias is QEMU's alias for its newest machine type pc-q35-VERSION.
	machineAlias = "q35"
)

// DefaultProgram is the name of the QEMU that machines run on by default.
const DefaultProgram = "qemu-system-x86_64"

// Program is the QEMU that machines run on. Its version is queried once.
type Program struct {
	Name string
	// Users are the users that machines run as.
	Users *launch.Users
	Log   logr.Logger

	mu        sync.Mutex
	isChecked bool // the version is recent enough
	// types are the machine types of this QEMU, and newest is the type that machineAlias stands for.
	// They are queried again when the file was replaced, such as by an upgrade of the host.
	types  map[string]bool
	newest string
	file   os.FileInfo

	confinement confine.Finder // has a separate lock
}

// Check fails if QEMU is missing or too old. After one success it always succeeds: machines may
// run, and need attention even if the file is removed.
func (p *Program) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkLocked(ctx)
}

func (p *Program) checkLocked(ctx context.Context) error {
	if p.isChecked {
		return nil
	}
	out, err := p.queryOutput(ctx, "--version")
	if err != nil {
		return err
	}
	if err := checkVersion(out); err != nil {
		return errorf(ErrProgram, "%s %w", p.Name, err)
	}
	p.isChecked = true
	_, _ = p.confinement.Find(ctx, p.Log, p.Name) // so that the log says at once what is missing
	return nil
}

// MinVersion is the oldest QEMU that machines run on.
var MinVersion = fmt.Sprintf("%d.%d", minMajor, minMinor)

// Version returns the version that QEMU prints, which may be too old.
func (p *Program) Version(ctx context.Context) (string, error) {
	out, err := p.queryOutput(ctx, "--version")
	if err != nil {
		return "", err
	}
	found := longVersionPattern.FindSubmatch(out)
	if found == nil {
		return "", errorf(ErrProgram, "%s prints %.80q in place of its version", p.Name, out)
	}
	return string(found[1]), nil
}

// Landlock returns the version of Landlock that confines machines. With 0 the error says why
// Landlock is not used.
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
		return fmt.Errorf("prints %.80q in place of its version", out)
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major < minMajor || (major == minMajor && minor < minMinor) {
		return fmt.Errorf("is version %d.%d, and %d.%d or newer is needed", major, minor, minMajor, minMinor)
	}
	return nil
}

// typePattern matches a line of "-machine help": a name, a text, and after an alias the
// full name in brackets.
var typePattern = regexp.MustCompile(`(?m)^(\S+) .*?(?:\(alias of (\S+)\))?\r?$`)

// MachineType returns the type to start a machine with. That is pinned, which a machine keeps
// for life, since another type has other hardware. If pinned is empty, it is the newest type of
// this QEMU.
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
		"the machine was made with machine type %s, which %s lacks (its newest is %s): install a QEMU that has it, such as the one that the machine ran on before", pinned, p.Name, p.newest)
}

func (p *Program) queryTypes(ctx context.Context) error {
	file, replaced := confine.IsReplaced(p.Name, p.file)
	if !replaced {
		return nil
	}
	out, err := p.queryOutput(ctx, "-machine", "help")
	if err != nil {
		return errorf(ErrMachineTypes, "%v", err) // not ErrProgram: running machines can still be reached
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
		return errorf(ErrMachineTypes, "%s -machine help does not list %s as an alias of a machine type", p.Name, machineAlias)
	}
	p.types, p.newest, p.file = types, newest, file
	return nil
}
