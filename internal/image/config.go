// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/image/health"
)

// RunConfig has the settings of a container image for running its program.
type RunConfig struct {
	// Entrypoint and Cmd together are the command. Users may replace Cmd, the default arguments.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Env are variables as NAME=value.
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	// User is a name or ID, optionally followed by a colon and a group; empty for root.
	User string `json:"user,omitempty"`
	// StopSignal is a name such as SIGTERM, or a number; empty for SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// ExposedPorts are ports such as 80/tcp, and Volumes are paths.
	ExposedPorts []string `json:"exposedPorts,omitempty"`
	Volumes      []string `json:"volumes,omitempty"`
	// HealthCheck is nil for an image without one.
	HealthCheck *health.Check `json:"healthCheck,omitempty"`
}

const (
	// maxConfigFile is how many bytes an image's configuration may have, including its history
	// and labels.
	maxConfigFile = 1 << 20
	// maxConfig is how many bytes a RunConfig may have as JSON.
	maxConfig = 256 << 10
)

// readConfig returns the configuration of an image. It fails if the image is for another
// platform.
func readConfig(image v1.Image) (RunConfig, error) {
	text, err := image.RawConfigFile()
	if err != nil {
		return RunConfig{}, err
	}
	file, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return RunConfig{}, unusableContent("the configuration of the image is invalid")
	}
	if err := checkPlatform(file.OS, file.Architecture); err != nil {
		return RunConfig{}, err
	}
	c := RunConfig{
		Entrypoint: file.Config.Entrypoint, Cmd: file.Config.Cmd, Env: file.Config.Env,
		WorkingDir: file.Config.WorkingDir, User: file.Config.User, StopSignal: file.Config.StopSignal,
		ExposedPorts: slices.Sorted(maps.Keys(file.Config.ExposedPorts)),
		Volumes:      slices.Sorted(maps.Keys(file.Config.Volumes)),
	}
	if c.HealthCheck, err = health.Parse(text); err == nil {
		err = c.check()
	}
	if err != nil {
		return RunConfig{}, unusableContent("the configuration of the image is invalid: %w", err)
	}
	return c, nil
}

// checkPlatform fails if an image is for another platform than machines. As in container engines,
// an image without a platform passes.
func checkPlatform(system, architecture string) error {
	if (system != "" && system != platform.OS) || (architecture != "" && architecture != platform.Architecture) {
		return unusableContent("the image is for %.40q, and machines run %s/%s", system+"/"+architecture, platform.OS, platform.Architecture)
	}
	return nil
}

// check fails for values with which no program can be started.
func (c RunConfig) check() error {
	var healthArgs []string
	if c.HealthCheck != nil {
		healthArgs = c.HealthCheck.Args
	}
	for _, text := range slices.Concat(c.Entrypoint, c.Cmd, c.Env, c.ExposedPorts, c.Volumes, healthArgs, []string{c.WorkingDir, c.User, c.StopSignal}) {
		if strings.Contains(text, "\x00") {
			return fmt.Errorf("%.80q has a zero byte", text)
		}
	}
	for _, variable := range c.Env {
		if strings.IndexByte(variable, '=') < 1 {
			return fmt.Errorf("the variable %.80q must have the form NAME=value", variable)
		}
	}
	text, err := json.Marshal(c)
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("it has %d bytes as JSON, and may have at most %d", len(text), maxConfig)
	}
	return err
}

// parseConfig parses a stored configuration.
func parseConfig(text []byte) (RunConfig, error) {
	var c RunConfig
	if len(text) > maxConfig {
		return c, errors.New("the configuration is too large")
	}
	return c, json.Unmarshal(text, &c)
}
