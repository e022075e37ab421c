// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config defines the messages of the host and of the program in a machine's initramfs (cmd/drover-guest)
// about one run of a container image as a machine.
//
// Start with Config, which the host writes and QEMU hands to the guest by fw_cfg. The guest answers
// with one Result a line (result.go) on a separate disk, so the end of a run can be read even if no
// process of the host was connected. Everything else goes through the agent:
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

// Names of the ports on the virtio-serial bus. A write in the guest blocks until the host reads from the port.
const (
	// StdoutPort receives the standard output of the entrypoint.
	StdoutPort = "cloudnative.tw.stdout"
	// StderrPort receives the standard error of the entrypoint.
	StderrPort = "cloudnative.tw.stderr"
	// AgentPort leads to the agent.
	AgentPort = "cloudnative.tw.agent"
)

// Serial numbers of Drover's disks, as virtio-blk reports them. They have at most 20 bytes, and capital letters, so that
// no volume has the same one.
const (
	// RootSerial is the read-only disk with the image's file system, EROFS.
	RootSerial = "DROVER-ROOT"
	// DataSerial is the disk for files that the machine writes, with the ext4 of package guest/datadisk.
	DataSerial = "DROVER-DATA"
	// ModulesSerial is the read-only disk with all modules of the guest's kernel, EROFS.
	ModulesSerial = "DROVER-MODULES"
	// FilesSerial is the read-only disk with the folders of package guest/mounts as they are at the start of the run.
	FilesSerial = "DROVER-FILES"
	// ResultSerial is the disk for Results, one in each line from its beginning. It has ResultBytes zeros at first. Unlike
	// a pipe or a file, a disk has a fixed size whatever a guest writes, and needs no reader on the host.
	ResultSerial = "DROVER-RESULT"
)

// Limits of a Config.
const (
	// MaxBytes is how many bytes the JSON may have.
	MaxBytes = 1 << 20
	// MaxGraceSeconds is the maximum of GraceSeconds, a day.
	MaxGraceSeconds = 24 * 60 * 60
	// NonceBytes is the length of Nonce.
	NonceBytes = 32

	// minMTU is the smallest MTU of a network with IPv4 (RFC 791).
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
	// Env has entries of the form NAME=VALUE. The last entry for a name counts. The guest adds PATH, HOME and
	// HOSTNAME if they are missing.
	Env []string `json:"env,omitempty"`
	// User has the form USER or USER:GROUP, each a name or an ID, as in an image. It is empty for root. The
	// guest looks up names in the image.
	User string `json:"user,omitempty"`
	// WorkingDir is absolute, or empty for the root directory. The guest makes it if it is missing.
	WorkingDir string `json:"workingDir,omitempty"`
	// Init is InitImage or InitDrover; with "" it is InitImage if the entrypoint is an init by its name.
	Init string `json:"init,omitempty"`
	// Stdin is set if the entrypoint has an input, and TTY if it has a terminal.
	Stdin bool `json:"stdin,omitempty"`
	TTY   bool `json:"tty,omitempty"`
	// Sysctls are set in their order, once the network is up.
	Sysctls []Sysctl `json:"sysctls,omitempty"`
	// StopSignal is sent to the entrypoint when the power button is pressed. It has a form of images:
	// "SIGQUIT", "QUIT", "3", "SIGRTMIN+3". Empty means SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// GraceSeconds is the time from the stop signal to SIGKILL. The host has a separate limit, which must be
	// longer, so that the guest can still report the end and unmount its disk. 0 disables the guest's limit.
	GraceSeconds int64   `json:"graceSeconds,omitempty"`
	Network      Network `json:"network"`
	Disks        Disks   `json:"disks"`
	// Volumes are the other disks.
	Volumes []Volume `json:"volumes,omitempty"`
	// ImageVolumes are the paths of the image's VOLUMEs, which are folders of the data disk.
	ImageVolumes []string `json:"imageVolumes,omitempty"`
	// Nonce is a random secret of the run. The host sends it at the beginning of each connection to the agent.
	Nonce []byte `json:"nonce"`
}

// Values of Config.Init: the entrypoint is process 1 of the image's PID namespace, or the child of a process 1 that only
// reaps orphans.
const (
	InitImage  = "Image"
	InitDrover = "Drover"
)

// Sysctl is a parameter of the kernel.
type Sysctl struct {
	// Name has dots between its segments. A slash is a dot in a segment, as for sysctl(8).
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Path returns the file of the parameter.
func (s Sysctl) Path() string {
	return "/proc/sys/" + strings.NewReplacer(".", "/", "/", ".").Replace(s.Name)
}

// Network configures the guest's first network interface.
type Network struct {
	// Address is an IPv4 address with the prefix length of its network. Without it only the loopback
	// interface is up.
	Address netip.Prefix `json:"address,omitzero"`
	// Gateway is the router to all other networks, the zero Addr for none.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// MTU is in bytes, 0 for the interface's default.
	MTU       int          `json:"mtu,omitempty"`
	Resolvers []netip.Addr `json:"resolvers,omitempty"`
	// Search are the domains in which short names are looked up.
	Search []string `json:"search,omitempty"`
}

// Disks has the serial numbers of Drover's disks.
type Disks struct {
	Root string `json:"root"`
	// Data is empty for a machine that keeps its files only in memory.
	Data string `json:"data,omitempty"`
	// Modules is empty for a machine whose kernel loads no other modules.
	Modules string `json:"modules,omitempty"`
	// Files is empty for a machine without such folders.
	Files string `json:"files,omitempty"`
}

// Encode checks a Config, and returns it in the form that the guest decodes.
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

// Decode decodes the text of Encode. It rejects unknown fields, since this guest could not do what
// the host expects.
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
	sysctl = regexp.MustCompile(`^[a-z0-9_-]+([./][a-z0-9_-]+)*$`)
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
	if c.Init != "" && c.Init != InitImage && c.Init != InitDrover {
		return fmt.Errorf("init is %.80q, want %s or %s", c.Init, InitImage, InitDrover)
	}
	for _, s := range c.Sysctls {
		if !sysctl.MatchString(s.Name) || strings.ContainsAny(s.Value, "\x00\n") {
			return fmt.Errorf("sysctls: %.80q=%.80q is not the name of a parameter and a line", s.Name, s.Value)
		}
	}
	if _, err := ParseSignal(c.StopSignal); err != nil {
		return fmt.Errorf("stopSignal: %w", err)
	}
	return errors.Join(c.checkCommand(), c.Network.check(), c.Disks.check(), c.checkVolumes())
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
	if (c.WorkingDir != "" && !path.IsAbs(c.WorkingDir)) || len(c.WorkingDir) > maxPath {
		return fmt.Errorf("workingDir is %.80q, want an absolute path of at most %d bytes", c.WorkingDir, maxPath)
	}
	return errors.Join(checkText("workingDir", c.WorkingDir), checkText("user", c.User))
}

// checkText rejects invalid UTF-8, which JSON would change, and NUL characters, which end a text for the
// kernel. Its errors do not quote the text, which may be from a Secret.
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
	if (n.Address.IsValid() && !n.Address.Addr().Is4()) || (n.Gateway.IsValid() && !n.Gateway.Is4()) {
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
	used := map[string]string{}
	for _, disk := range []struct{ field, serial string }{{"root", d.Root}, {"data", d.Data}, {"modules", d.Modules}, {"files", d.Files}} {
		if disk.serial == "" && disk.field != "root" {
			continue
		}
		if !serial.MatchString(disk.serial) || len(disk.serial) > maxSerial {
			return fmt.Errorf("disks.%s is %.80q, want a serial number of 1 to %d letters, digits, '.', '_' and '-'", disk.field, disk.serial, maxSerial)
		}
		if other := used[disk.serial]; other != "" {
			return fmt.Errorf("disks.%s and disks.%s are both %q, want different serial numbers", other, disk.field, disk.serial)
		}
		used[disk.serial] = disk.field
	}
	return nil
}
