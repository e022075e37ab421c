// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package command has the commands of drover that inspect an installation, or remove parts of it,
// while another process may run it.
//
// Start with Program.Commands. Each command has a separate file. output.go has output that the
// commands share, and servers.go finds the servers for the command retained.
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
	// Settings returns the flags of the running drover up, or of the last one, on a host.
	Settings func(*doctor.Host) (doctor.Settings, error)
	// AddDataDirFlag adds the flag --data-dir.
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

// findHost returns the host with a data dir, and with the settings of the present or last run. If
// root runs the command, the process becomes the owner of the data dir before it reads the data dir,
// since the settings name programs to run.
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
