// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestCheckMountPath checks where volumes may be.
func TestCheckMountPath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/a", "/etc/a", "/device", "/processes/x", "/a b/..c/.d", "/" + strings.Repeat("x", maxMountPath-1)} {
		assert.NoError(t, CheckMountPath(path))
	}
	for path, text := range map[string]string{
		"": "an absolute path", ".": "an absolute path", "a": "an absolute path", "/a/": "an absolute path", "/a/..": "an absolute path", "//a": "an absolute path", "/./a": "an absolute path",
		"/": "cannot be volumes", "/etc": "cannot be volumes", "/proc": "cannot be volumes", "/sys/fs": "cannot be volumes", "/dev/shm": "cannot be volumes",
		"/a\x00b": "without NUL", "/" + strings.Repeat("x", maxMountPath): "at most 1024 bytes",
	} {
		assert.ErrorSays(t, path, CheckMountPath(path), text)
	}
}

// TestVolumes checks which volumes a guest refuses.
func TestVolumes(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*Config){
		`volumes[0].serial is "DROVER-RESULT"`: func(c *Config) { c.Volumes = []Volume{{Serial: ResultSerial}} },
		`volumes[0].serial is "DROVER-ROOT"`:   func(c *Config) { c.Volumes = []Volume{{Serial: RootSerial}} },
		`volumes[0].serial is "DROVER-FILES"`:  func(c *Config) { c.Disks.Files, c.Volumes = FilesSerial, []Volume{{Serial: FilesSerial}} },
		`volumes[1].serial is "a"`:             func(c *Config) { c.Volumes = []Volume{{Serial: "a"}, {Serial: "a"}} },
		`volumes[0].path is "/proc"`:           func(c *Config) { c.Volumes = []Volume{{Serial: "a", Path: "/proc"}} },
		`volumes[1].path is "/a", which`:       func(c *Config) { c.Volumes = []Volume{{Serial: "a", Path: "/a"}, {Serial: "b", Path: "/a"}} },
		`a VOLUME of the image is "data"`:      func(c *Config) { c.ImageVolumes = []string{"data"} },
	} {
		c := validConfig()
		change(&c)
		assert.ErrorSays(t, says, c.Check(), says)
	}
}
