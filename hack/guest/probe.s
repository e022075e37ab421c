# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The boot sector by which the qemu driver finds out whether guests run under KVM
# (internal/machine/probe.bin is its assembled form). It does what every kernel
# does first: it switches to 64-bit mode with paging, waits for interrupts of the
# timer, and then sends QEMU's isa-debug-exit device a code.
	.code16
	.globl _start
_start:
	cli
	xor %ax,%ax
	mov %ax,%ds
	mov %ax,%es
	mov %ax,%ss
	mov $0x7c00,%sp
	# page tables at 0x1000..0x3fff: identity map of 2 MiB
	cld
	mov $0x1000,%edi
	xor %eax,%eax
	mov $0xc00,%ecx
	rep stosl
	movl $0x2003,0x1000
	movl $0x3003,0x2000
	movl $0x83,0x3000
	mov $0x1000,%eax
	mov %eax,%cr3
	mov %cr4,%eax
	or $0x620,%eax
	mov %eax,%cr4
	mov $0xc0000080,%ecx
	rdmsr
	or $0x100,%eax
	wrmsr
	lgdt gdtr
	mov %cr0,%eax
	and $~4,%eax
	or $0x80000003,%eax
	mov %eax,%cr0
	ljmp $8,$long
	.code64
long:
	# IDT at 0x4000: vector 0x20 for the timer
	mov $tick,%eax
	mov $0x4200,%edi
	mov %ax,(%rdi)
	movw $8,2(%rdi)
	movw $0x8e00,4(%rdi)
	shr $16,%eax
	mov %ax,6(%rdi)
	lidt idtr
	# PIC: vectors from 0x20, timer only
	mov $0x11,%al
	out %al,$0x20
	mov $0x20,%al
	out %al,$0x21
	mov $4,%al
	out %al,$0x21
	mov $1,%al
	out %al,$0x21
	mov $0xfe,%al
	out %al,$0x21
	mov $0x34,%al
	out %al,$0x43
	mov $0,%al
	out %al,$0x40
	mov $0x10,%al
	out %al,$0x40
	movaps %xmm0,%xmm1
	xor %ebx,%ebx
	mov $0x7c00,%esp
	sti
wait:
	hlt
	cmp $20,%ebx
	jb wait
	mov $0x2a,%al
	out %al,$0xf4
	hlt
	jmp .
tick:
	inc %ebx
	push %rax
	mov $0x20,%al
	out %al,$0x20
	pop %rax
	iretq
	.balign 8
gdt: .quad 0
	.quad 0x00af9a000000ffff
gdtr: .word 15
	.long gdt
idtr: .word 0x20f+0x200
	.quad 0x4000
	.org 510
	.word 0xaa55
