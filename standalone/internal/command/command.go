// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package command has the commands of drover that look at an installation, and clear it up,
// from another process than the one that runs it.
//
// Start with Program.Commands; each command has a separate file. output.go has the output that
// they have in common, servers.go the servers that retained shows.
package command

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
)

// Program has the settings that the commands share.
type Program struct {
	Version string
	Clock   clock.WithTicker
	// Settings returns the flags of the drover up that runs, or ran last, on a host.
	Settings func(*doctor.Host) (doctor.Settings, error)
	// AddDataDirFlag adds --data-dir.
	AddDataDirFlag func(f *pflag.FlagSet, dir *string)
}

// Commands returns the commands.
func (p Program) Commands() []*cobra.Command {
	all := []*cobra.Command{p.newStatusCommand(), p.newDoctorCommand(), p.newImageCommand(), p.newRetainedCommand()}
	for _, cmd := range all {
		useUsageCode(cmd)
	}
	return all
}

// findHost returns the host with a data dir, and with the settings of the run that is or was
// last. Root becomes the owner of the data dir before anything in it is read, since its
// settings name programs to run.
func (p Program) findHost(dataDir string) (*doctor.Host, error) {
	byRoot := os.Geteuid() == 0
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	if err := datadir.BecomeOwner(path); err != nil {
		return nil, err
	}
	h := doctor.NewHost(datadir.Layout(path), p.Version, p.Clock)
	h.ByRoot = byRoot
	h.Settings, err = p.Settings(h)
	return h, err
}
