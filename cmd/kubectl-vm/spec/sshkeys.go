// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// keyAuto is the value of --ssh-key that stands for the public keys of the user.
const keyAuto = "auto"

const (
	// agentTimeout is how long the ssh agent may take to list its keys.
	agentTimeout = 5 * time.Second
	// maxKeyBytes is the largest size of a file of public keys.
	maxKeyBytes = 1 << 20
)

// readKeys returns the public keys for the values of --ssh-key. A value is keyAuto, a file, or a public
// key.
func readKeys(ctx context.Context, values []string) ([]string, error) {
	var all []string
	for _, value := range values {
		keys, err := readKey(ctx, value)
		if err != nil {
			return nil, fmt.Errorf("--ssh-key %s: %w", value, err)
		}
		for _, key := range keys {
			if !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
	}
	return all, nil
}

func readKey(ctx context.Context, value string) ([]string, error) {
	switch {
	case value == keyAuto:
		return findUserKeys(ctx)
	case strings.Contains(value, " "):
		return parseKeys(value)
	}
	content, err := kit.ReadLimited(value, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	return parseKeys(string(content))
}

// findUserKeys returns the public keys of the user: the keys in ~/.ssh, or else the keys of the ssh
// agent. It does not create keys.
func findUserKeys(ctx context.Context) ([]string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("find the home folder: %w", err)
	}
	paths, err := filepath.Glob(filepath.Join(home, ".ssh", "id_*.pub"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, path := range paths {
		if strings.HasSuffix(path, "-cert.pub") {
			continue // the file has a certificate, not a key
		}
		content, err := kit.ReadLimited(path, maxKeyBytes)
		if err != nil {
			return nil, err
		}
		keys, err := parseKeys(string(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, keys...)
	}
	if len(all) > 0 {
		return all, nil
	}
	return listAgentKeys(ctx)
}

var errNoKeys = errors.New("there is no public key in ~/.ssh/id_*.pub or in an ssh agent: make a key with ssh-keygen -t ed25519, or name another file")

// listAgentKeys returns the public keys of the user's ssh agent.
func listAgentKeys(ctx context.Context) ([]string, error) {
	if os.Getenv("SSH_AUTH_SOCK") == "" {
		return nil, errNoKeys
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ssh-add", "-L").Output()
	if err != nil {
		return nil, errNoKeys // ssh-add also fails if the agent does not have keys
	}
	return parseKeys(string(out))
}

// parseKeys returns the lines of a file of public keys.
func parseKeys(text string) ([]string, error) {
	if strings.Contains(text, "PRIVATE KEY-----") {
		return nil, errors.New("this is a private key: name the file with the public key, whose name ends in .pub")
	}
	var keys []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !isPublicKey(line) {
			return nil, fmt.Errorf("%q is not a public key, which begins like ssh-ed25519 AAAA", kit.ShortenText(printable.Line(line), 40))
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no public key in it")
	}
	return keys, nil
}

// isPublicKey reports whether a line contains a public key, as in authorized_keys: options may stand
// before the key.
func isPublicKey(line string) bool {
	words := strings.Fields(line)
	for i, word := range words[:len(words)-1] {
		if !strings.HasPrefix(word, "ssh-") && !strings.HasPrefix(word, "ecdsa-") && !strings.HasPrefix(word, "sk-") {
			continue
		}
		blob, err := base64.StdEncoding.DecodeString(words[i+1])
		if err == nil && len(blob) > 32 {
			return true
		}
	}
	return false
}
