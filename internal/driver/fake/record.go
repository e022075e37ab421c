// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/format"
)

// Record is a simulated server. The engine's folder has a JSON file with the record of each server.
type Record struct {
	format.Header

	UID       types.UID `json:"uid,omitempty"`
	ID        string    `json:"id,omitempty"`
	ClusterID string    `json:"clusterID,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	// Epoch of the leader that created the server.
	Epoch uint64 `json:"epoch,omitempty"`

	// State is Running, Paused, Stopping, Stopped or Restarting; empty means
	// Stopped. A server that is Running is shown as Starting until UpAt has passed.
	State driver.State `json:"state,omitempty"`
	// Run is the name of the last run.
	Run       string    `json:"run,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	UpAt      time.Time `json:"upAt,omitzero"`
	// StopsAt is when a server that is Stopping will be off.
	StopsAt time.Time `json:"stopsAt,omitzero"`
	// IgnoreShutdown is set if the guest ignores requests to stop.
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	// Exit describes how the last run ended.
	Exit *Exit `json:"exit,omitempty"`
	// Retained is set if the server was released.
	Retained bool `json:"retained,omitempty"`

	CPUMilli      int64 `json:"cpuMilli,omitempty"`
	MemoryBytes   int64 `json:"memoryBytes,omitempty"`
	RootDiskBytes int64 `json:"rootDiskBytes,omitempty"`
	// Load is the part of its CPUs that the guest uses, from 0 to 1.
	Load float64 `json:"load"`

	RestartPolicy driver.RestartPolicy `json:"restartPolicy,omitempty"`
	// ServerConfig is the configuration that the last run was started with.
	ServerConfig
}

// ServerConfig is the part of a server that only a start can change.
type ServerConfig struct {
	Image           string   `json:"image,omitempty"`
	ImageChecksum   string   `json:"imageChecksum,omitempty"`
	Kernel          *Kernel  `json:"kernel,omitempty"`
	Volumes         []Volume `json:"volumes,omitempty"`
	Ports           []Port   `json:"ports,omitempty"`
	SSHFingerprints []string `json:"sshFingerprints,omitempty"`
	// HasUserData and HasNetworkData are stored instead of the data, which may be secret.
	HasUserData    bool `json:"hasUserData,omitempty"`
	HasNetworkData bool `json:"hasNetworkData,omitempty"`

	Command    []string `json:"command,omitempty"`
	Args       []string `json:"args,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	User       string   `json:"user,omitempty"`
	Init       string   `json:"init,omitempty"`

	Stdin   bool            `json:"stdin,omitempty"`
	TTY     bool            `json:"tty,omitempty"`
	Sysctls []driver.Sysctl `json:"sysctls,omitempty"`
	// EnvFingerprints maps the names of environment variables to fingerprints of their values.
	EnvFingerprints map[string]string `json:"envFingerprints,omitempty"`
	// MountPaths are the folders of spec.files. Their content is not stored.
	MountPaths []string `json:"mountPaths,omitempty"`
}

type (
	// Kernel is a kernel to boot directly.
	Kernel struct {
		Source  string `json:"source,omitempty"`
		Initrd  string `json:"initrd,omitempty"`
		Cmdline string `json:"cmdline,omitempty"`
	}
	// Volume is an additional disk.
	Volume struct {
		Name      string `json:"name"`
		SizeBytes int64  `json:"sizeBytes"`
		Image     string `json:"image,omitempty"`
		ReadOnly  bool   `json:"readOnly,omitempty"`
		MountPath string `json:"mountPath,omitempty"`
	}
	// Port is a port that is reachable from outside.
	Port struct {
		Name     string `json:"name"`
		Protocol string `json:"protocol,omitempty"`
		Port     int32  `json:"port"`
		HostPort int32  `json:"hostPort,omitempty"`
		HostIP   string `json:"hostIP,omitempty"`
	}
)

// Exit describes how a run ended.
type Exit struct {
	Code   int       `json:"code"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at,omitzero"`
}

// configOf returns the configuration of a server that is started from spec.
func configOf(spec driver.ServerSpec) ServerConfig {
	c := ServerConfig{
		Image: spec.Image.Source, ImageChecksum: spec.Image.Checksum,
		HasUserData: !spec.UserData.IsZero(), HasNetworkData: !spec.NetworkData.IsZero(),
		Command: spec.Command, Args: spec.Args, WorkingDir: spec.WorkingDir, User: spec.User, Init: string(spec.Init), Stdin: spec.Stdin, TTY: spec.TTY, Sysctls: spec.Sysctls, MountPaths: driver.MountPaths(spec.Files),
	}
	if k := spec.Image.Kernel; k != nil {
		c.Kernel = &Kernel{Source: k.Source, Initrd: k.Initrd, Cmdline: k.Cmdline}
	}
	for _, v := range spec.Volumes {
		volume := Volume{Name: v.Name, SizeBytes: v.SizeBytes, ReadOnly: v.ReadOnly, MountPath: v.MountPath}
		if v.Image != nil {
			volume.Image = v.Image.Source
		}
		c.Volumes = append(c.Volumes, volume)
	}
	for _, p := range spec.Ports {
		c.Ports = append(c.Ports, Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, HostPort: p.HostPort, HostIP: p.HostIP})
	}
	for _, key := range spec.SSHKeys {
		c.SSHFingerprints = append(c.SSHFingerprints, fingerprint(key))
	}
	for _, v := range spec.Env {
		if c.EnvFingerprints == nil {
			c.EnvFingerprints = map[string]string{}
		}
		c.EnvFingerprints[v.Name] = fingerprint(v.Value.Reveal())
	}
	return c
}

// fingerprint returns a hash, which is stored in place of a text to detect changes. The text may be
// a Secret's, and a user may have given a private SSH key by mistake.
func fingerprint(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// decodeRecord reads a record that Drover or a person has written.
func decodeRecord(content []byte) (Record, error) {
	r, err := format.DecodeEdited[Record](content)
	if err != nil {
		return Record{}, fmt.Errorf("it is not the JSON of a server: %w", err)
	}
	return r, nil
}

func encodeRecord(r Record) ([]byte, error) {
	content, err := format.Encode(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the server %s: %w", r.UID, err)
	}
	return content, nil
}

// completeFields fills in the fields that a person who edited the record left out, and
// rejects invalid values. changed is the time of the edit. run is the name of the new run
// if the edit has started the server.
func (r *Record) completeFields(uid types.UID, changed time.Time, run string) error {
	if r.UID == "" {
		r.UID = uid
	}
	if r.UID != uid {
		return fmt.Errorf("uid is %q: it must be the file's name, %q, or left out", r.UID, uid)
	}
	if r.ID == "" {
		r.ID = "fake-" + string(uid)
	}
	if err := driver.CheckUID(types.UID(r.ID)); err != nil { // an ID may have the same characters as a UID
		return fmt.Errorf("id is %q: it must be letters, digits, - or _", r.ID)
	}
	if r.Load < 0 || r.Load > 1 || r.CPUMilli < 0 || r.MemoryBytes < 0 || r.RootDiskBytes < 0 {
		return errors.New("load must be from 0 to 1; cpuMilli, memoryBytes and rootDiskBytes must not be negative")
	}
	return r.completeState(changed.UTC(), run)
}

func (r *Record) completeState(changed time.Time, run string) error {
	switch r.State {
	case "":
		r.State = driver.StateStopped
	case driver.StateStarting:
		r.State = driver.StateRunning
	case driver.StateStopped, driver.StateRunning, driver.StatePaused, driver.StateStopping, driver.StateRestarting:
	default: // StatePending and StateRemoving too, which no record has
		return fmt.Errorf("state is %q: it must be Running, Paused, Stopping, Stopped or Restarting", r.State)
	}
	if r.isOn() {
		r.beginManualRun(changed, run)
	} else {
		r.endManualRun(changed)
	}
	return nil
}

// beginManualRun begins a new run if a person has changed a stopped server to a running one.
func (r *Record) beginManualRun(changed time.Time, run string) {
	if r.Run != "" && r.Exit == nil {
		return
	}
	r.Run, r.StartedAt, r.UpAt, r.Exit = run, changed, time.Time{}, nil
}

// endManualRun completes the exit of a run that a person ended.
func (r *Record) endManualRun(changed time.Time) {
	exit := Exit{}
	switch {
	case r.Exit != nil:
		exit = *r.Exit
	case r.Run == "":
		return
	}
	if exit.Reason == "" {
		exit.Reason = exitReason(exit.Code)
	}
	if exit.At.IsZero() {
		exit.At = changed
	}
	r.Exit = &exit
}

func exitReason(code int) string {
	if code == 0 {
		return "Completed"
	}
	return "Error"
}

// isOn reports whether a run is under way.
func (r *Record) isOn() bool { return r.State != driver.StateStopped }
