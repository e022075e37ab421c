// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package login is the client's side of access to the Drover service of this host for users in group drover: it
// gets a certificate of an hour for the user of this process.
//
// Start with Client.Obtain. The package imports little, since a program that has to start fast links it; package
// members of drover up is the server.
package login

import (
	"cmp"
	"path/filepath"
)

// Group is the group whose members may log in.
const Group = "drover"

const (
	defaultDir = "/run/drover"
	dirEnv     = "DROVER_LOGIN_DIR"
)

// Dir returns the folder with the socket and the kubeconfig of the service.
func Dir(getenv func(string) string) string { return cmp.Or(getenv(dirEnv), defaultDir) }

// SocketPath returns the socket on which the service signs certificates.
func SocketPath(dir string) string { return filepath.Join(dir, "login.sock") }

// KubeconfigPath returns the kubeconfig for all users, which does not contain secrets.
func KubeconfigPath(dir string) string { return filepath.Join(dir, "kubeconfig") }

// MaxRequest bounds a request, which is a certificate request (PKCS #10) in DER, up to the end of the stream.
const MaxRequest = 4 << 10

// Answer is the answer of the service, in JSON.
type Answer struct {
	// Certificate is in PEM. The organizational unit of its subject is the user's namespace.
	Certificate string `json:"certificate,omitempty"`
	// Error is the reason for a missing certificate.
	Error string `json:"error,omitempty"`
	// Busy is set if the same request may succeed a moment later.
	Busy bool `json:"busy,omitempty"`
}

// DataDir returns the data dir of a user's Drover without a flag.
func DataDir(getenv func(string) string, uid int) string {
	switch {
	case getenv("DROVER_DATA_DIR") != "":
		return getenv("DROVER_DATA_DIR")
	case uid == 0:
		return "/var/lib/drover"
	case filepath.IsAbs(getenv("XDG_DATA_HOME")):
		return filepath.Join(getenv("XDG_DATA_HOME"), "drover")
	}
	return filepath.Join(getenv("HOME"), ".local", "share", "drover")
}
