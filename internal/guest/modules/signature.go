// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"bytes"
	"encoding/binary"
)

// signatureMark ends a module with a signature. Before it come 12 bytes about the signature, the last
// four its length, and before these the signature (include/linux/module_signature.h).
var signatureMark = []byte("~Module signature appended~\n")

const signatureInfo = 12

// StripSignature removes a module's signature. The kernel does not require one, since whoever can
// change its file can change the kernel, too; checking it costs an emulated machine 10 ms a module.
func StripSignature(module []byte) []byte {
	rest, isSigned := bytes.CutSuffix(module, signatureMark)
	if !isSigned || len(rest) < signatureInfo {
		return module
	}
	length := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	if length > int64(len(rest)-signatureInfo) {
		return module
	}
	return rest[:int64(len(rest)-signatureInfo)-length]
}
