// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config defines the messages of the host and of the program in a machine's initramfs (cmd/drover-guest)
// about one run of a container image as a machine.
//
// Start with Config, which the host writes and QEMU hands to the guest by fw_cfg. The guest answers
// with one Result a line (result.go) on a serial port that the host backs by a file, so the end of
// a run can be read even if no process of the host was connected. Everything else goes through the agent:
// internal/guest/client and internal/guest/wire. What a guest says is a claim, which ReadClaim bounds and checks.
package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// File is the name of the fw_cfg file that has the Config as JSON.
const File = "opt/cloudnative.tw/config"

// Names of the ports on the virtio-serial bus. A port without a reader on the host holds its writer back.
const (
	// StdoutPort takes the standard output of the entrypoint.
	StdoutPort = "cloudnative.tw.stdout"
	// StderrPort takes its standard error.
	StderrPort = "cloudnative.tw.stderr"
	// AgentPort leads to the agent.
	AgentPort = "cloudnative.tw.agent"
)

// Serial numbers of the disks, as virtio-blk reports them. They have at most 20 bytes.
const (
	// RootSerial is of the disk with the image's file system, EROFS, which the guest only reads.
	RootSerial = "drover-root"
	// DataSerial is of the disk that takes what the machine writes, ext4 made by internal/guest/datadisk.
	DataSerial = "drover-data"
	// ResultSerial is of the disk that takes a Result in each line, from its beginning on. It has ResultBytes zeros at
	// first. A disk has one size, whatever a guest writes to it, and keeps it while nobody reads.
	ResultSerial = "drover-result"
)

// Version is the version of the interface between host and guest: this format, disks and ports. It is raised with each
// change of these. hack/guest.sh reads it here, and writes it beside the guest for the host.
const Version = 4

// Limits of a Config.
const (
	// MaxBytes is how long the JSON may be.
	MaxBytes = 1 << 20
	// MaxGraceSeconds is how long an entrypoint may be given to end: a day.
	MaxGraceSeconds = 24 * 60 * 60
	// NonceBytes is the length of Nonce.
	NonceBytes = 32

	// minMTU is the least that every network with IPv4 carries (RFC 791).
	minMTU       = 68
	maxMTU       = 65535
	maxResolvers = 16
	maxSearch    = 32
	maxSerial    = 20
	maxPath      = 4096
)

// Config is the configuration of one run, for the program in the guest.
type Config struct {
	Version int `json:"version"`
	// Hostname is a DNS label.
	Hostname string `json:"hostname"`
	// Args are the program and its arguments, from the image's entrypoint and command or in place of them.
	Args []string `json:"args"`
	// Env has entries of the form NAME=VALUE. The last of a name counts. The guest adds PATH, HOME and
	// HOSTNAME where they are missing.
	Env []string `json:"env,omitempty"`
	// User is written as in an image: empty for root, a name or number, or one of each separated by a
	// colon, the second of a group. Names are looked up in the image.
	User string `json:"user,omitempty"`
	// WorkingDir is absolute, or empty for the root. It is made where it is missing.
	WorkingDir string `json:"workingDir,omitempty"`
	// StopSignal is sent to the entrypoint when the power button is pressed. It is written as in an image:
	// "SIGQUIT", "QUIT", "3", "SIGRTMIN+3". Empty means SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// GraceSeconds is how long the entrypoint may go on after the stop signal. Then it gets SIGKILL, so
	// that the guest can still report it and leave its disk in order. 0 means no limit of the guest's:
	// the host has a separate limit in any case, which has to be longer.
	GraceSeconds int64   `json:"graceSeconds,omitempty"`
	Network      Network `json:"network"`
	Disks        Disks   `json:"disks"`
	// Nonce begins each of the host's connections to the agent. It is random, for one run.
	Nonce []byte `json:"nonce"`
}

// Network configures the guest's first network interface.
type Network struct {
	// Address is an IPv4 address with the prefix length of its network. Without it only the loopback
	// interface is up.
	Address netip.Prefix `json:"address,omitzero"`
	// Gateway is the router to all other networks, not valid for none.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// MTU is in bytes, 0 for the interface's default.
	MTU       int          `json:"mtu,omitempty"`
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	// Search are the domains in which short names are looked up.
	Search []string `json:"search,omitempty"`
}

// Disks has the serial numbers of the disks.
type Disks struct {
	Root string `json:"root"`
	// Data is empty for a machine that keeps nothing: what it writes is in its memory.
	Data string `json:"data,omitempty"`
}

// Encode returns a Config as the guest reads it, once it has been checked.
func Encode(c Config) ([]byte, error) {
	c.Version = Version
	if err := c.Check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("arguments and environment make a configuration of %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	return text, nil
}

// Decode reads what Encode wrote, and refuses fields that it does not know: the host needs something
// that this guest cannot do.
func Decode(text []byte) (Config, error) {
	var c Config
	if len(text) > MaxBytes {
		return c, fmt.Errorf("the configuration has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return c, fmt.Errorf("the configuration is not valid JSON: %w", err)
	}
	if head.Version != Version {
		return c, fmt.Errorf("version is %d, want %d: the initramfs is of another Drover", head.Version, Version)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return c, fmt.Errorf("the configuration: %w", err)
	}
	return c, c.Check()
}

var (
	label  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	serial = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)
	domain = regexp.MustCompile(`^[a-zA-Z0-9_]([a-zA-Z0-9._-]{0,252}[a-zA-Z0-9])?\.?$`)
)

// Check refuses what no guest can run.
func (c Config) Check() error {
	if !label.MatchString(c.Hostname) {
		return fmt.Errorf("hostname is %.80q, want a DNS label: lower case letters, digits and '-', at most 63", c.Hostname)
	}
	if len(c.Nonce) != NonceBytes {
		return fmt.Errorf("nonce has %d bytes, want %d", len(c.Nonce), NonceBytes)
	}
	if c.GraceSeconds < 0 || c.GraceSeconds > MaxGraceSeconds {
		return fmt.Errorf("graceSeconds is %d, want 0 to %d", c.GraceSeconds, MaxGraceSeconds)
	}
	if _, err := ParseSignal(c.StopSignal); err != nil {
		return fmt.Errorf("stopSignal: %w", err)
	}
	return errors.Join(c.checkCommand(), c.Network.check(), c.Disks.check())
}

func (c Config) checkCommand() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return errors.New("args names no program: the image has neither entrypoint nor command, so name one")
	}
	for _, arg := range c.Args {
		if err := checkText("args", arg); err != nil {
			return err
		}
	}
	for _, entry := range c.Env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return fmt.Errorf("env has the entry %.80q, want NAME=VALUE", name)
		}
		if err := checkText("env, variable "+name, entry); err != nil {
			return err
		}
	}
	if c.WorkingDir != "" && !path.IsAbs(c.WorkingDir) || len(c.WorkingDir) > maxPath {
		return fmt.Errorf("workingDir is %.80q, want an absolute path of at most %d bytes", c.WorkingDir, maxPath)
	}
	return errors.Join(checkText("workingDir", c.WorkingDir), checkText("user", c.User))
}

// checkText refuses what JSON would change, or what ends a text for the kernel. It does not print
// the text, which may be a Secret's.
func checkText(field, text string) error {
	switch {
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("%.80s has a NUL character, which no program can be given", field)
	case !utf8.ValidString(text):
		return fmt.Errorf("%.80s is not UTF-8", field)
	}
	return nil
}

func (n Network) check() error {
	if n.Address.IsValid() && !n.Address.Addr().Is4() || n.Gateway.IsValid() && !n.Gateway.Is4() {
		return fmt.Errorf("network has the address %s and the gateway %s, want IPv4 addresses", n.Address, n.Gateway)
	}
	if n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU) {
		return fmt.Errorf("network.mtu is %d, want 0 or %d to %d", n.MTU, minMTU, maxMTU)
	}
	if len(n.Resolvers) > maxResolvers || len(n.Search) > maxSearch {
		return fmt.Errorf("network has %d resolvers and %d search domains, at most %d and %d are allowed", len(n.Resolvers), len(n.Search), maxResolvers, maxSearch)
	}
	for _, name := range n.Search {
		if !domain.MatchString(name) {
			return fmt.Errorf("network.search has %.80q, want a domain", name)
		}
	}
	for _, r := range n.Resolvers {
		if !r.IsValid() || r.Zone() != "" {
			return fmt.Errorf("network.resolvers has %s, want an IP address without a zone", r)
		}
	}
	return nil
}

func (d Disks) check() error {
	for field, value := range map[string]string{"root": d.Root, "data": d.Data} {
		if value == "" && field == "data" {
			continue
		}
		if !serial.MatchString(value) || len(value) > maxSerial {
			return fmt.Errorf("disks.%s is %.80q, want a serial number of 1 to %d letters, digits, '.', '_' and '-'", field, value, maxSerial)
		}
	}
	if d.Root == d.Data {
		return fmt.Errorf("disks.root and disks.data are both %q, want two serial numbers", d.Root)
	}
	return nil
}
