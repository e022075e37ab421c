// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"cloudnative.tw/drover/internal/machine/launch"
)

const (
	// seedLabel is the volume label that cloud-init looks for.
	seedLabel = launch.SeedSerial
	// noUserData is an empty configuration, since cloud-init requires the file user-data.
	noUserData = "#cloud-config\n"
	isoBlock   = 2048
)

// Seed is the data that cloud-init reads through its data source NoCloud.
type Seed struct {
	// InstanceID is the instance-id. When it changes, cloud-init repeats its per-instance tasks.
	InstanceID, Hostname  string
	SSHKeys               []string
	UserData, NetworkData string // empty for none
}

// AddTo writes the disk that cloud-init reads, and adds it to the files of QEMU. The disk is
// rewritten for each run, so a change takes effect at the next run.
func (s Seed) AddTo(files *launch.Files, m Machine) (fd int, err error) {
	if err := s.writeTo(m); err != nil {
		return 0, err
	}
	disk, err := os.Open(m.File(SeedFile))
	if err != nil {
		return 0, err
	}
	return files.Add(disk), nil
}

func (s Seed) writeTo(m Machine) error {
	files, err := s.makeFiles()
	if err != nil {
		return err
	}
	tmp, remove, err := m.Staging.Temp()
	if err != nil {
		return err
	}
	defer remove()
	image := filepath.Join(tmp, SeedFile)
	if err := writeISO(image, filepath.Join(tmp, "files"), files); err != nil {
		return fmt.Errorf("making the disk for cloud-init: %w", err)
	}
	return os.Rename(image, m.File(SeedFile))
}

// makeFiles returns the contents of the disk's files, by name.
func (s Seed) makeFiles() (map[string]string, error) {
	meta, err := json.Marshal(struct {
		InstanceID string   `json:"instance-id"`
		Hostname   string   `json:"local-hostname"`
		Keys       []string `json:"public-keys,omitempty"`
	}{s.InstanceID, s.Hostname, s.SSHKeys})
	if err != nil {
		return nil, err
	}
	files := map[string]string{"meta-data": escapeForYAML(string(meta)) + "\n", "user-data": cmp.Or(s.UserData, noUserData)}
	if s.NetworkData != "" {
		files["network-config"] = s.NetworkData
	}
	return files, nil
}

// escapeForYAML makes JSON valid YAML: it escapes the characters that JSON allows and YAML calls
// not printable. With one of them cloud-init would reject the whole disk.
func escapeForYAML(document string) string {
	var out strings.Builder
	for _, r := range document {
		if (r >= 0x7f && r < 0xa0) || r == '\ufeff' || r == '\ufffe' || r == '\uffff' {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

// writeISO makes an ISO image of files. The library uses dir as its workspace, and removes it.
func writeISO(path, dir string, files map[string]string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // in the driver's folder
	if err != nil {
		return err
	}
	iso, err := iso9660.Create(file.New(out, false), 0, 0, isoBlock, dir)
	if err == nil {
		err = iso.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: seedLabel})
	}
	return errors.Join(err, out.Close())
}
