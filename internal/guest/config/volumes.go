// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Volume is a disk that is not one of Drover's.
type Volume struct {
	// Serial is the serial number of the disk: /dev/disk/by-id/virtio-SERIAL leads to it.
	Serial string `json:"serial"`
	// Path is the folder on which the disk's file system is mounted, "" for none.
	Path string `json:"path,omitempty"`
	// ReadOnly is set for a disk that cannot be written to.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// BlankUUID is the UUID of the file system that Drover makes for volumes (package guest/datadisk). The guest gives a volume
// another UUID once it has filled it.
var BlankUUID = [16]byte{6: 0x40, 8: 0x80}

// maxMountPath is how many bytes a path may have to which something is mounted.
const maxMountPath = 1024

// CheckMountPath refuses a path to which no volume can be mounted.
func CheckMountPath(text string) error {
	inFolder := func(folder string) bool { return text == folder || strings.HasPrefix(text, folder+"/") }
	switch {
	case len(text) > maxMountPath || strings.ContainsRune(text, 0):
		return fmt.Errorf("is %.80q, want a path of at most %d bytes, without NUL characters", text, maxMountPath)
	case !path.IsAbs(text) || path.Clean(text) != text:
		return fmt.Errorf("is %.80q, want an absolute path without '.', '..', '//' and a '/' at its end", text)
	case text == "/" || text == "/etc" || slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, inFolder):
		return fmt.Errorf("is %q, which a machine needs: /, /etc and paths in /proc, /sys or /dev cannot be volumes", text)
	}
	return nil
}

func (c Config) checkVolumes() error {
	serials := []string{c.Disks.Root, c.Disks.Data, c.Disks.Modules, c.Disks.Files, ResultSerial}
	var paths []string
	for i, v := range c.Volumes {
		if !serial.MatchString(v.Serial) || len(v.Serial) > maxSerial || slices.Contains(serials, v.Serial) {
			return fmt.Errorf("volumes[%d].serial is %.80q, want a serial number that no other disk has", i, v.Serial)
		}
		serials = append(serials, v.Serial)
		if v.Path == "" {
			continue
		}
		if err := CheckMountPath(v.Path); err != nil {
			return fmt.Errorf("volumes[%d].path %w", i, err)
		}
		if slices.Contains(paths, v.Path) {
			return fmt.Errorf("volumes[%d].path is %q, which another volume has", i, v.Path)
		}
		paths = append(paths, v.Path)
	}
	for _, p := range c.ImageVolumes {
		if err := CheckMountPath(p); err != nil {
			return fmt.Errorf("a VOLUME of the image %w", err)
		}
	}
	return nil
}
