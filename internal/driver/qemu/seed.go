// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"cloudnative.tw/drover/internal/driver"
)

const (
	// seedLabel is the label by which cloud-init finds the disk.
	seedLabel = "CIDATA"
	// noUserData is what cloud-init treats as no user data; the file must exist.
	noUserData = "#cloud-config\n"
	isoBlock   = 2048
)

// makeSeed writes what cloud-init reads by its data source NoCloud. It is written anew
// for each run, so a change takes effect at the next one.
func (d *Driver) makeSeed(h instanceDir, spec driver.ServerSpec) error {
	files, err := seedFiles(spec)
	if err != nil {
		return err
	}
	tmp, remove, err := d.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	image := filepath.Join(tmp, seedFile)
	if err := writeISO(image, filepath.Join(tmp, "files"), files); err != nil {
		return fmt.Errorf("the disk for cloud-init: %w", err)
	}
	return os.Rename(image, h.file(seedFile))
}

// seedFiles returns the files by name. The instance ID is the server's UID, so cloud-init
// does its once-only tasks once per server.
func seedFiles(spec driver.ServerSpec) (map[string]string, error) {
	// JSON is valid YAML, whatever text it holds.
	meta, err := json.Marshal(struct {
		InstanceID string   `json:"instance-id"`
		Hostname   string   `json:"local-hostname"`
		Keys       []string `json:"public-keys,omitempty"`
	}{string(spec.UID), spec.Name, spec.SSHKeys})
	if err != nil {
		return nil, err
	}
	files := map[string]string{"meta-data": string(meta) + "\n", "user-data": spec.UserData.Reveal()}
	if spec.UserData.IsZero() {
		files["user-data"] = noUserData
	}
	if !spec.NetworkData.IsZero() {
		files["network-config"] = spec.NetworkData.Reveal()
	}
	return files, nil
}

// writeISO makes an ISO image of the given files, in a folder that the library removes.
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

// hash returns a value by which two secrets can be compared without keeping them.
func hash(s driver.Secret) string {
	if s.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte(s.Reveal()))
	return hex.EncodeToString(sum[:])
}
